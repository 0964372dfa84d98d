"""The seam between the guard and whatever computes: label log-probabilities per policy, as they become known."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from alora.errors import AloraError

if TYPE_CHECKING:
    from alora.bundle.read import Bundle
    from alora.policy import Policy
    from alora.prompt.render import Prefix, Suffix
    from alora.verdict import Calibration


class EngineDead(AloraError):
    """The engine is gone: no request can be answered until the server is started again."""


@dataclass(frozen=True)
class Served:
    """One policy as it is served, under the name of its adapter on the server."""

    name: str
    policy: Policy
    suffix: Suffix
    calibration: Calibration
    digest: str
    stage: str = "live"  # or shadow: answers after the live ones, and blocks nothing

    @classmethod
    def of(cls, bundle: Bundle, stage: str = "live") -> Served:
        """A bundle that was read and checked."""
        digest = bundle.weights.digest
        return cls(bundle.served_name, bundle.policy, bundle.suffix, bundle.calibration, digest, stage)

    def at(self, stage: str) -> Served:
        """The same weights at another stage."""
        return replace(self, stage=stage)


@dataclass(frozen=True)
class Reading:
    """The answer for the policy at ``index`` of those asked.

    ``logits`` has one value per label, known up to a constant. ``cached_tokens`` of the prompt were not computed.
    ``error`` says why there is no answer, and ``logits`` is empty then.
    """

    index: int
    logits: Sequence[float] = ()
    cached_tokens: int = 0
    error: str | None = None


class Reader(Protocol):
    """What computes."""

    def read(
        self, prefix: Prefix, asked: Sequence[Served], salt: str | None, priority: int
    ) -> AsyncGenerator[Reading, None]:
        """One reading per policy, in any order. Closing the generator cancels what still runs.

        Args:
            salt: requests share cached KV only under equal salts.
            priority: lower runs first, where the engine schedules by priority.

        Raises:
            EngineDead: nothing can be read any more.
        """
        ...

    async def load(self, served: Served, bundle: Bundle) -> None:
        """Make ``served`` readable, or raise an AloraError."""
        ...

    async def unload(self, name: str) -> None:
        """Forget the weights under ``name``, which nothing reads any more."""
        ...
