"""Reading over HTTP, before a vLLM server that runs alora's plugin and cannot take the guard's routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from alora.errors import AloraError
from alora.guard.reader import EngineDead, Reading, Served, as_they_come
from alora.serving.client import RemoteEngine
from alora.serving.http import Unreachable

if TYPE_CHECKING:
    from alora.bundle.light import LightBundle
    from alora.prompt.render import Prefix, Renderer

_AT_ONCE = 256  # requests: a whole battery's, in one step of the engine


def longest_prompt(url: str) -> int | None:
    """The tokens of a prompt that the server takes, and those of the answer; None where it does not say.

    Raises:
        ConfigError: it does not answer, or is no OpenAI-compatible server.
    """

    async def ask() -> list[int]:
        engine = RemoteEngine(url)  # in an event loop of its own
        try:
            return [most for most in (await engine.models()).values() if most is not None]
        finally:
            await engine.close()

    found = asyncio.run(ask())
    return min(found) - 1 if found else None


class RemoteReader:
    """Reads from the server at ``url``, one HTTP request per policy.

    An adapter is read only after the server has shown that it runs the plugin and gives the bundle's golden answer; a
    server that was away must show it again, for it may have come back without.
    """

    def __init__(self, url: str, bundles: Sequence[LightBundle], renderer: Renderer) -> None:
        self._engine = RemoteEngine(url, _AT_ONCE)
        self._renderer = renderer
        self._bundles = {bundle.served_name: bundle for bundle in bundles}
        self._proven: set[str] = set()
        self._proving = asyncio.Lock()

    async def read(
        self, prefix: Prefix, asked: Sequence[Served], salt: str | None, priority: int
    ) -> AsyncGenerator[Reading, None]:
        """See :class:`~alora.guard.reader.Reader`. The server aborts what nobody waits for."""
        await self._prove([item.name for item in asked])
        fields = ({} if salt is None else {"cache_salt": salt}) | ({"priority": priority} if priority else {})
        readings = as_they_come([self._one(index, prefix, item, fields) for index, item in enumerate(asked)])
        try:
            async for reading in readings:
                yield reading
        finally:
            await readings.aclose()

    async def _one(self, index: int, prefix: Prefix, item: Served, fields: dict[str, str | int]) -> Reading:
        try:
            return Reading(index, *await self._engine.ask(prefix, item.suffix, item.name, **fields))
        except Unreachable as error:
            self._proven.clear()
            raise EngineDead(str(error)) from error
        except AloraError as error:
            self._proven.discard(item.name)  # a proxy may have answered for a server that is away
            return Reading(index, error=" ".join(str(error).split())[:300])

    async def _prove(self, names: Sequence[str]) -> None:
        async with self._proving:
            if unknown := [self._bundles[name] for name in names if name not in self._proven]:
                try:
                    await self._engine.prove(unknown, self._renderer)
                except Unreachable as error:
                    raise EngineDead(str(error)) from error
                self._proven.update(bundle.served_name for bundle in unknown)

    async def load(self, served: Served, bundle: LightBundle) -> None:
        """See :class:`~alora.guard.reader.Reader`; the server must have loaded it already, under its name."""
        self._bundles[served.name] = bundle
        await self._prove([served.name])

    async def unload(self, name: str) -> None:
        """See :class:`~alora.guard.reader.Reader`; on the server it stays."""
        self._bundles.pop(name, None)
        self._proven.discard(name)
