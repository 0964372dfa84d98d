"""Ask a guard server for every policy's verdict in one request. No torch, no tokenizer: HTTP alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from threading import Event, Thread
from typing import Any, Self, TypeVar

import httpx2

from alora.config.secrets import KEY, redacted
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.typed import typed

SESSION = "x-session-id"  # by which routers keep a conversation on its replica
_ELSEWHERE = (429, 502, 503, 504)
_EVERY_S, _PROBE_S = 2.0, 5.0  # between two questions for health; of silence, until a server is taken for gone
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class GuardVerdict:
    """One policy's answer; ``flagged`` without a probability: it did not answer, and counts as its failure policy says.

    ``status`` is ok, missed (deadline), failed or skipped, and ``reason`` says why.
    """

    policy: str
    status: str
    flagged: bool
    adapter: str
    label: str | None = None
    probability: float | None = None
    threshold: float | None = None
    probabilities: Mapping[str, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class GuardAnswer:
    """Every verdict on one conversation. ``complete``: every policy that was asked answered."""

    id: str
    action: str
    complete: bool
    verdicts: tuple[GuardVerdict, ...]
    usage: Mapping[str, int]
    timing_ms: Mapping[str, float]

    @property
    def blocked(self) -> bool:
        """Whether any verdict is flagged."""
        return self.action != "allow"

    @property
    def flagged(self) -> list[str]:
        """The ids of the flagged policies."""
        return [verdict.policy for verdict in self.verdicts if verdict.flagged]


@dataclass(frozen=True)
class GuardPolicy:
    """A policy that a guard serves; ``adapter`` is its ``policy@digest``."""

    policy: str
    title: str
    adapter: str
    digest: str
    stage: str
    labels: Sequence[str]
    threshold: float


def session_id(messages: Sequence[Mapping[str, Any]], tenant: str | None = None) -> str:
    """The same for all turns of a conversation, without personal data: a digest of tenant and opening.

    The opening ends with the first message that is no system message, which an app's conversations share.
    """
    length = next((n for n, message in enumerate(messages, 1) if message.get("role") != "system"), len(messages))
    first = json.dumps([tenant, *messages[:length]], sort_keys=True, default=str)
    return hashlib.blake2b(first.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _Servers:
    """Who is asked about a conversation: always the same server first (rendezvous hashing), so that its KV is there.

    A server that did not answer, or that is not healthy, comes last until it is; its conversations alone move. Where
    there are several, a thread asks for the health of each.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._away: set[str] = set()
        self._watcher, self._closed = Thread(), Event()
        if not self._urls:
            raise ConfigError("no guard is given; give its URL, http://HOST:PORT")

    def order(self, session: str) -> list[str]:
        """All servers, the conversation's own first."""
        if len(self._urls) > 1 and not self._watcher.is_alive():  # at first, and after a fork
            self._watcher = Thread(target=_watch, args=(weakref.ref(self), self._closed), daemon=True)
            self._watcher.start()

        def rank(url: str) -> tuple[bool, bytes]:
            return url not in self._away, hashlib.blake2b(f"{session} {url}".encode(), digest_size=8).digest()

        return sorted(self._urls, key=rank, reverse=True)

    def ask_health(self, http: httpx2.Client) -> None:
        """Find out who is away."""
        for url in self._urls:
            try:
                healthy = http.get(f"{url}/v1/guard/health").status_code == 200
            except httpx2.TransportError:
                healthy = False
            (self._away.discard if healthy else self._away.add)(url)

    def close(self) -> None:
        self._closed.set()

    def takes(self, url: str, response: httpx2.Response) -> bool:
        """Whether this answer stands: a server that is full or going down leaves its place to the next one."""
        if response.status_code >= 500:
            self.failed(url)
        return response.status_code not in _ELSEWHERE

    def failed(self, url: str) -> None:
        self._away.add(url)


def _watch(servers: weakref.ref[_Servers], closed: Event) -> None:
    """Ask for health every few seconds, until nobody needs it."""
    with httpx2.Client(**_options(_PROBE_S)) as http:
        while not closed.wait(_EVERY_S) and (one := servers()) is not None:
            one.ask_health(http)
            del one


class Guard:
    """A guard server at ``url`` (``http://HOST:PORT``), whose key is read from ``$VLLM_API_KEY``; use it by ``with``.

    Several servers of the same policies: each conversation, by tenant (``cache_salt``) and opening, has its own; the
    next one answers where that cannot. A server that does not answer raises: no answer is no leave to go on.
    """

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        self._servers = _Servers([url] if isinstance(url, str) else url)
        self._http = httpx2.Client(**_options(timeout))

    def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """The verdicts on a conversation; ``fields`` are the request's: policies, deadline_ms, on_failure, cache_salt.

        Raises:
            PromptRefused: the server refuses the request.
            ConfigError: it does not answer, or fails.
            CheckFailed: what answers is no guard.
        """
        asking = _Asking(self._servers, messages, fields)
        for url in asking.urls:
            with asking.of(url):
                asking.answered(self._http.post(f"{url}/v1/guard", **asking.request))
            if asking.answer is not None:
                break
        return asking.result()

    def policies(self) -> list[GuardPolicy]:
        """What it serves; raises as :meth:`check` does."""
        known = [field.name for field in fields(GuardPolicy)]
        url = self._servers.order("")[0]
        try:
            response = self._http.get(f"{url}/v1/guard/policies")
        except httpx2.TransportError as error:
            raise _unreachable(url, error) from error
        return _read(response, lambda said: [GuardPolicy(*(item[name] for name in known)) for item in said["policies"]])

    def close(self) -> None:
        """Close its connections."""
        self._servers.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGuard:
    """:class:`Guard` for asynchronous code. Cancelling a call ends its work on the server."""

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        self._servers = _Servers([url] if isinstance(url, str) else url)
        self._http = httpx2.AsyncClient(**_options(timeout))

    async def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """See :meth:`Guard.check`."""
        asking = _Asking(self._servers, messages, fields)
        for url in asking.urls:
            with asking.of(url):
                asking.answered(await self._http.post(f"{url}/v1/guard", **asking.request))
            if asking.answer is not None:
                break
        return asking.result()

    async def close(self) -> None:
        """Close its connections."""
        self._servers.close()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Asking:
    """One conversation on its way from server to server, until one answers; asking twice does no harm."""

    def __init__(self, servers: _Servers, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> None:
        session = session_id(messages, fields.get("cache_salt"))
        self.urls, self._servers = servers.order(session), servers
        self.request = {"json": {"messages": list(messages), **fields}, "headers": {SESSION: session}}
        self.answer: httpx2.Response | None = None
        self._last: httpx2.Response | ConfigError | None = None
        self._url = ""

    @contextlib.contextmanager
    def of(self, url: str) -> Iterator[None]:
        """Ask one server; where it cannot be reached, that is kept for the case that nobody can."""
        self._url = url
        try:
            yield
        except httpx2.TransportError as error:
            self._servers.failed(url)
            self._last = _unreachable(url, error)

    def answered(self, response: httpx2.Response) -> None:
        self._last = response
        if self._servers.takes(self._url, response):
            self.answer = response

    def result(self) -> GuardAnswer:
        """What was answered, or what the last server said."""
        if isinstance(self._last, ConfigError):
            raise self._last
        assert self._last is not None
        return _answer(self._last)


def _options(timeout: float) -> dict[str, Any]:
    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"headers": headers, "timeout": timeout, "follow_redirects": False}


def _answer(response: httpx2.Response) -> GuardAnswer:
    return _read(response, lambda said: typed(GuardAnswer, said))


def _read(response: httpx2.Response, make: Callable[[Any], _Made]) -> _Made:
    if response.status_code != 200:
        refused = PromptRefused if response.status_code in (400, 413) else ConfigError
        raise refused(f"{_place(response.url)} answered {response.status_code}: {response.text[:300]!r}")
    try:
        return make(response.json())
    except (ValueError, TypeError, LookupError) as error:
        raise CheckFailed(f"{_place(response.url)} is no guard: {error}; start one with alora serve") from error


def _unreachable(url: str, error: Exception) -> ConfigError:
    reason = str(error) or type(error).__name__
    return ConfigError(f"{redacted(url)} does not answer ({reason}); alora serve starts a guard")


def _place(url: httpx2.URL) -> str:
    return redacted(str(url))
