"""Reading over HTTP, before vLLM servers that run alora's plugin and cannot take the guard's routes."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence

from alora.bundle.light import LightBundle
from alora.errors import AloraError, CheckFailed, ConfigError, one_line
from alora.guard.reader import EngineDead, Overloaded, Reading, Served, as_they_come
from alora.guard.wire import GuardRequest
from alora.http import Full, Unreachable, named
from alora.prompt.render import Prefix, Renderer
from alora.serving.client import RemoteEngine
from alora.serving.completions import MODELS, Completions
from alora.serving.servers import Servers

_AT_ONCE = 256  # requests to a server: a whole battery's, in one step of the engine


def longest_prompt(urls: Sequence[str]) -> int | None:
    """The tokens of a prompt that each server takes, and those of the answer; None where none of them says so.

    Raises:
        ConfigError: none answers, or none is an OpenAI-compatible server.
    """

    async def ask(url: str) -> dict[str, int | None] | AloraError:
        engine = Completions(url)  # in an event loop of its own
        try:
            return await engine.models()
        except AloraError as error:
            return error
        finally:
            await engine.close()

    async def ask_all() -> list[dict[str, int | None] | AloraError]:
        return await asyncio.gather(*map(ask, urls))

    answers = asyncio.run(ask_all())
    found = [models for models in answers if isinstance(models, dict)]
    if not found and isinstance(answers[0], AloraError):
        raise answers[0]
    limits = [most for models in found for most in models.values() if most is not None]
    return min(limits) - 1 if limits else None


class RemoteReader:
    """Reads from the servers at ``urls``, one HTTP request per policy: a session's from its own server, and from the
    next one where that cannot.

    A server is asked for an adapter only after it has shown that it runs the plugin and gives the bundle's golden
    answer; one that was away must show it again, for it may have come back without.
    """

    def __init__(self, urls: Sequence[str], bundles: Sequence[LightBundle], renderer: Renderer) -> None:
        engines = {engine.url: engine for engine in (RemoteEngine(url, renderer, _AT_ONCE) for url in urls)}
        self._engines = engines
        self._servers = Servers(list(engines), MODELS, lambda url: engines[url].forget())
        self._bundles = {bundle.served_name: bundle for bundle in bundles}
        self._failed = dict[str, str]()  # adapters that no server gave when they were asked last, and why

    def read(self, prefix: Prefix, asked: Sequence[Served], request: GuardRequest) -> AsyncGenerator[Reading, None]:
        """See :class:`~alora.guard.reader.Reader`. A server aborts what nobody waits for."""
        return as_they_come([self._one(index, prefix, asked, request) for index in range(len(asked))])

    async def _one(self, index: int, prefix: Prefix, asked: Sequence[Served], request: GuardRequest) -> Reading:
        item, session, fields = asked[index], request.session, dict[str, str | int]()
        if request.cache_salt is not None:
            # vLLM takes 128 letters at most, and no @ or / among them.
            salt = request.cache_salt.encode("utf-8", "surrogatepass")
            fields["cache_salt"] = hashlib.blake2b(salt, digest_size=32).hexdigest()
        if request.priority:
            fields["priority"] = request.priority

        async def ask(url: str) -> tuple[tuple[float, ...], int]:
            return await self._engines[url].ask(prefix, self._bundles[item.name], session, **fields)

        try:
            reading = Reading(index, *await self._servers.first(session, ask))
            self._failed.pop(item.name, None)
            return reading
        except Unreachable as error:
            raise EngineDead(str(error)) from error
        except Full as error:
            raise Overloaded(str(error)) from error
        except AloraError as error:
            if isinstance(error, CheckFailed | ConfigError) and item.name in self._bundles:  # not of this request alone
                self._failed[item.name] = one_line(error)
            return Reading(index, error=one_line(error))

    def require_running(self) -> None:
        if self._servers.all_away:
            raise EngineDead(f"none of the servers answers: {', '.join(map(named, self._engines))}")

    def trouble(self) -> str | None:
        """See :class:`~alora.guard.reader.Reader`. vLLM forgets the adapters that were loaded while it ran."""
        if not self._failed:
            return None
        name, error = next(iter(self._failed.items()))
        return f"no server gave an answer of {', '.join(self._failed)} when it was asked last; {name}: {error}"

    async def load(self, served: Served, bundle: LightBundle) -> None:
        """See :class:`~alora.guard.reader.Reader`; every server that answers must have loaded it, under its name."""
        self._bundles[served.name] = bundle
        away: list[Unreachable | Full] = []
        for engine in self._engines.values():
            try:
                await engine.verify([bundle])
            except (Unreachable, Full) as error:  # it is verified when it is asked
                away.append(error)
        if len(away) == len(self._engines):
            full = [str(error) for error in away if isinstance(error, Full)]
            raise Overloaded(full[0]) if full else EngineDead(str(away[0]))

    async def unload(self, name: str) -> None:
        """See :class:`~alora.guard.reader.Reader`; on the servers it stays."""
        self._bundles.pop(name, None)
        self._failed.pop(name, None)
