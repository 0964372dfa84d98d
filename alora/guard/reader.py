"""The seam between the guard and whatever computes: label log-probabilities per policy, as they become known."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from alora.bundle.light import Bundle
from alora.bundle.manifest import Manifest, OfManifest
from alora.errors import AloraError
from alora.prompt.render import Prefix
from alora.verdict import highest
from alora.wire.native import Action, GuardRequest


class EngineDead(AloraError):
    """The engine is gone: no request can be answered until the server is started again."""


class Overloaded(AloraError):
    """No more requests are taken for now; ``wait_s``: seconds after which to ask again."""

    def __init__(self, message: str, wait_s: int = 1) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class GuardRefusal(AloraError):
    """A request that the guard does not answer. ``status`` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Served(OfManifest):
    """One policy as it is served: its bundle's manifest, what follows where it is flagged, and the groups that
    it answers in.

    ``name``, that of its adapter on the server, stands for the weights, and the manifest's digest for all that makes a
    verdict.
    """

    manifest: Manifest
    action: Action = "block"
    tags: tuple[str, ...] = ()  # names of groups that requests may ask for

    @classmethod
    def of(cls, bundle: Bundle, action: Action = "block", tags: tuple[str, ...] = ()) -> Self:
        """A bundle that was read and checked."""
        return cls(bundle.manifest, action, tags)

    @property
    def name(self) -> str:
        return self.served_name

    @property
    def digest(self) -> str:
        """That of its weights."""
        return self.manifest.adapter_digest

    @property
    def version(self) -> tuple[str, str]:
        """Of two that are equal in this, one answers as the other."""
        return self.name, self.manifest.sha256


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
