"""Several equal servers: each conversation has its own, and the next one answers where that cannot."""

import asyncio
import hashlib
import json
import logging
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Event, Thread
from typing import Any, TypeVar

from alora.closing import Waiting
from alora.data.cells import usual_role
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.http import Full, Http, Unreachable, named

SESSION = "x-session-id"  # by which routers keep a conversation on its replica
_EVERY_S, _PROBE_S = 2.0, 5.0  # between two health checks; of silence, after which a server counts as away
_DOUBT_S = 30.0  # between two requests to a healthy server that left one without an answer, until it gives one
_LATE_S = 10.0  # the same of one that let deadlines pass: it may be busy
_HUNG_S = 10.0  # of further silence, after which what it was asked goes to another: one that is busy is silent, too
_Answer = TypeVar("_Answer")
_logger = logging.getLogger("alora.serving")


def session_id(messages: Sequence[Mapping[str, Any]], tenant: str | None = None) -> str:
    """The same for all turns of a conversation, without personal data: a digest of tenant and opening.

    The opening ends with the first message that is not a system message, which an app's conversations share.
    """
    roles = (usual_role(str(message.get("role", message.get("from")))) for message in messages)
    length = next((n for n, role in enumerate(roles, 1) if role != "system"), len(messages))
    first = json.dumps([tenant, *messages[:length]], sort_keys=True, default=str)
    return hashlib.blake2b(first.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Servers:
    """Which server answers a conversation: always the same one first (rendezvous hashing), for its KV is cached there.

    A server that did not answer, or that is not healthy, comes last until it is; its conversations alone move.

    Args:
        health: the path that a healthy server answers with 200. A thread asks for it where there are several servers.
        lost: called with each server that is away; then the thread asks one server, too.
    """

    def __init__(self, urls: Sequence[str], health: str, lost: Callable[[str], object] | None = None) -> None:
        self._urls = list(dict.fromkeys(urls))
        self._health, self._lost = health, lost
        self._watched = len(self._urls) > 1 or lost is not None
        self._away: set[str] = set()
        self._doubted: dict[str, float] = {}  # when one that left a request without an answer is tried again
        self._answered: dict[str, float] = {}  # when one gave an answer last
        self._vain: dict[str, tuple[float, float]] = {}  # how long one was waited for since it answered, and until when
        self._silent: dict[str, float] = {}  # since when the health of a server has no answer, by the monotonic clock
        self._watcher, self._closed = Thread(), Event()

    def order(self, session: str) -> list[str]:
        """All servers, the conversation's own first."""
        if self._watched and not self._watcher.is_alive():  # at first, and after a fork
            self._watcher = Thread(target=_watch, args=(weakref.ref(self), self._closed), daemon=True)
            self._watcher.start()

        def rank(url: str) -> tuple[bool, bool, bytes]:
            return url not in self._away, url not in self._doubted, _share(session, url)

        return sorted(self._urls, key=rank, reverse=True)

    @property
    def all_away(self) -> bool:
        """Whether none answered when it was asked last."""
        return len(self._away) == len(self._urls)

    async def first(
        self,
        session: str,
        ask: Callable[[str], Awaitable[_Answer]],
        of_engine: Callable[[_Answer], bool] | None = lambda _: True,
    ) -> _Answer:
        """The answer of the first server that can answer; ``ask`` may run on several, which does no harm.

        Args:
            of_engine: whether the engine behind the server answered, or not in time; None where it is not asked.

        Raises:
            AloraError: the prompt is refused; a server is full, and the others cannot; or what the last one did wrong.
        """
        failed: ConfigError | CheckFailed | None = None
        tried = self.order(session) if of_engine is None else self._tried(session)
        for url in tried:
            if isinstance(failed, Full) and (url in self._away or url in self._doubted):
                continue
            began = time.monotonic()
            try:
                answer = await (self._unless_hung(url, ask(url)) if self._watched else ask(url))
                if of_engine is not None:
                    if of_engine(answer):
                        self._heard(url)
                    else:
                        self._given_up(url, began)
                return answer
            except asyncio.CancelledError:  # a deadline, say
                if of_engine is not None:
                    self._given_up(url, began)
                raise
            except PromptRefused:
                raise
            except (ConfigError, CheckFailed) as error:
                if isinstance(error, Unreachable) and not (error.silent and self._answered.get(url, 0.0) > began):
                    self.leave(url)  # one that answers others meanwhile is up: this request is too heavy
                    if error.silent and url not in self._silent:  # an engine may hang behind a healthy front end
                        self._doubted[url] = time.monotonic() + _DOUBT_S
                if isinstance(error, Full) or not isinstance(failed, Full):  # one that is full will answer, later
                    failed = error
                if url != tried[-1] or failed is not error:
                    _logger.warning("%s cannot answer: %s", named(url), error)
        assert failed is not None
        raise failed

    def _heard(self, url: str) -> None:
        self._doubted.pop(url, None)
        self._vain.pop(url, None)
        self._answered[url] = time.monotonic()

    def _given_up(self, url: str, began: float) -> None:
        """Doubt one that answers nobody: it may hang. Time in which nobody waited does not count."""
        now = time.monotonic()
        if self._answered.get(url, 0.0) < began:
            waited, until = self._vain.get(url, (0.0, began))
            self._vain[url] = waited + now - max(began, until), now
            if self._vain[url][0] > _HUNG_S:
                self._doubted[url] = now + _LATE_S

    def _tried(self, session: str) -> list[str]:
        """:meth:`order`; first the conversation's own server where it is doubted and one request may try it again."""
        order, now = self.order(session), time.monotonic()
        own = max(order, key=lambda url: _share(session, url))
        if own in self._away or now < self._doubted.get(own, math.inf):
            return order
        self._doubted[own] = now + _DOUBT_S
        return [own, *(url for url in order if url != own)]

    async def _unless_hung(self, url: str, asked: Awaitable[_Answer]) -> _Answer:
        """The answer of ``asked``; Unreachable once ``url`` hangs: a machine without power closes no connection."""
        task = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait({task}, timeout=_EVERY_S))[0]:
                if time.monotonic() - self._silent.get(url, math.inf) > _HUNG_S:
                    raise Unreachable(f"{named(url)} hangs: {self._health} has no answer")
            return task.result()
        finally:
            task.cancel()

    async def ask_health(self, http: Http) -> None:
        await asyncio.gather(*(self._ask_health(http, url) for url in self._urls))

    async def _ask_health(self, http: Http, url: str) -> None:
        try:
            healthy = (await http.send(f"{url}{self._health}", None, _PROBE_S))[0] == 200
            self._silent.pop(url, None)
        except ConfigError as error:
            healthy = False
            if isinstance(error, Unreachable) and error.silent:
                self._silent.setdefault(url, time.monotonic())
            elif _connected(error):  # it is being started again; one that has no route any more may still be silent
                self._silent.pop(url, None)
        if healthy:
            self._away.discard(url)
        else:
            self.leave(url)

    def leave(self, url: str) -> None:
        """Ask ``url`` last, until it is healthy."""
        self._away.add(url)
        if self._lost is not None:
            self._lost(url)

    def close(self) -> None:
        """Stop asking for health."""
        self._closed.set()


def _connected(error: BaseException | None) -> bool:
    """Whether a machine refused or cut a connection: behind what httpx2 raises, which does not always say from what."""
    if error is None or isinstance(error, ConnectionError):
        return error is not None
    several = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(map(_connected, (error.__cause__ or error.__context__, *several)))


def _share(session: str, url: str) -> bytes:
    key = f"{session} {url}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(key, digest_size=8).digest()


def _watch(servers: weakref.ref[Servers], closed: Event) -> None:
    """Check health every few seconds, until the servers are closed or gone."""
    http = Waiting(Http)
    while not closed.wait(_EVERY_S) and (watched := servers()) is not None:
        http(watched.ask_health)
        del watched
    http.close()
