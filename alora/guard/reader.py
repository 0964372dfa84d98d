"""The seam between the guard and whatever computes: label log-probabilities per policy, as they become known."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from alora.bundle.read import Bundle
from alora.errors import AloraError
from alora.policy import Policy
from alora.prompt.render import Prefix, Suffix
from alora.verdict import Calibration, highest
from alora.wire.native import GuardRequest


class EngineDead(AloraError):
    """The engine is gone: no request can be answered until the server is started again."""


class Overloaded(AloraError):
    """The engine takes no more requests for now."""


class GuardRefusal(AloraError):
    """A request that the guard does not answer. ``status`` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Served:
    """One policy as it is served, under the name of its adapter on the server.

    ``name`` stands for the weights, ``manifest`` (the digest of the bundle's manifest) for all that makes a verdict.
    """

    name: str
    policy: Policy
    suffix: Suffix
    calibration: Calibration
    digest: str
    manifest: str
    stage: str = "live"  # or shadow: answers after the live ones, and blocks nothing
    tags: tuple[str, ...] = ()  # names of groups that requests may ask for
    reasoning: str = "leave_out"  # of the assistant, in what it reads; of all that are served the same
    histogram: tuple[int, ...] | None = None  # of the probabilities of its validation rows, in tenths

    @classmethod
    def of(cls, bundle: Bundle, stage: str = "live", tags: tuple[str, ...] = ()) -> Self:
        """A bundle that was read and checked."""
        return cls(
            name=bundle.served_name,
            policy=bundle.policy,
            suffix=bundle.suffix,
            calibration=bundle.calibration,
            digest=bundle.manifest.adapter_digest,
            manifest=bundle.manifest.sha256,
            stage=stage,
            tags=tags,
            reasoning=bundle.manifest.reasoning,
            histogram=bundle.manifest.operating_point.histogram,
        )

    @property
    def version(self) -> tuple[str, str]:
        """Of two that are equal in this, one answers as the other."""
        return self.name, self.manifest

    def at(self, stage: str, tags: tuple[str, ...]) -> Self:
        """The same bundle at another stage, under other tags."""
        return replace(self, stage=stage, tags=tags)


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


def highest_of(readings: Sequence[Reading]) -> Reading:
    """Merge one policy's readings of all windows: the first failed one if any failed, else the highest."""
    if failed := next((reading for reading in readings if reading.error is not None), None):
        return failed
    cached = sum(reading.cached_tokens for reading in readings)
    return replace(readings[0], logits=highest([reading.logits for reading in readings]), cached_tokens=cached)


class Reader(Protocol):
    """What computes."""

    def read(self, prefix: Prefix, asked: Sequence[Served], request: GuardRequest) -> AsyncGenerator[Reading, None]:
        """One reading per policy, in any order. Closing the generator cancels what still runs.

        Args:
            request: whose salt and priority hold.

        Raises:
            EngineDead: nothing can be read any more.
            Overloaded: it takes no more for now.
        """
        ...

    def require_running(self) -> None:
        """EngineDead where nothing can be read, as far as that is known without asking."""
        ...

    def trouble(self) -> str | None:
        """What whoever runs it should look at, although it reads; for the health of the guard."""
        ...

    async def load(self, served: Served, bundle: Bundle) -> None:
        """Make ``served`` readable, or raise an AloraError."""
        ...

    async def unload(self, name: str) -> None:
        """Forget the weights under ``name``, which nothing reads any more."""
        ...


async def as_they_come(
    asked: Sequence[Coroutine[Any, Any, Reading]], check: Callable[[], None] = lambda: None
) -> AsyncGenerator[Reading, None]:
    """The readings of ``asked``, run together, each when it is there; closing it cancels the rest. While none comes,
    ``check`` is called each second; what it raises ends the wait."""
    tasks = [asyncio.create_task(one) for one in asked]
    done = asyncio.Queue[asyncio.Task[Reading]]()
    for task in tasks:
        task.add_done_callback(done.put_nowait)
    try:
        for _ in tasks:
            yield (await _next(done, check)).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(done: asyncio.Queue[asyncio.Task[Reading]], check: Callable[[], None]) -> asyncio.Task[Reading]:
    while True:
        try:
            async with asyncio.timeout(1.0):
                return await done.get()
        except TimeoutError:
            check()
