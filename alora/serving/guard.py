"""Ask a guard server for every policy's verdict in one request. No torch, no tokenizer: HTTP alone."""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from threading import Event, Thread
from typing import Any, Self, TypeVar

from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.policy import Policy
from alora.serving.http import Http, Unreachable, Waiting, named
from alora.typed import typed
from alora.verdict import Calibration

SESSION = "x-session-id"  # by which routers keep a conversation on its replica
_ELSEWHERE = (429, 502, 503, 504)
_EVERY_S, _PROBE_S = 2.0, 5.0  # between two questions for health; of silence, until a server is taken for gone
_LISTING_S = 10.0  # of silence, before it says what it serves
_CONNECTIONS = 100
_MOST = 2**31  # tokens
_DIGEST = re.compile("[0-9a-f]{8,128}")
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

    def __post_init__(self) -> None:
        if self.status not in ("ok", "missed", "failed", "skipped"):
            raise ValueError(f"{self.policy}: the status is {self.status!r}")
        if self.status != "ok":
            return
        if self.label is None or self.probability is None or self.threshold is None or self.probabilities is None:
            raise ValueError(f"{self.policy}: a verdict lacks label, probability, threshold or probabilities")
        if not all(0 <= value <= 1 for value in (self.probability, *self.probabilities.values())):
            raise ValueError(f"{self.policy}: {self.probability} and {self.probabilities} are no probabilities")
        if self.flagged != (self.probability >= self.threshold):
            raise ValueError(
                f"{self.policy}: flagged is {self.flagged}, for {self.probability} at the threshold {self.threshold}"
            )


@dataclass(frozen=True)
class GuardAnswer:
    """Every verdict on one conversation. ``complete``: every policy that was asked answered."""

    id: str
    action: str
    complete: bool
    verdicts: tuple[GuardVerdict, ...]
    usage: Mapping[str, int]
    timing_ms: Mapping[str, float]

    def __post_init__(self) -> None:
        if not all(0 <= count < _MOST for count in self.usage.values()):
            raise ValueError(f"usage is {dict(self.usage)}")

    @property
    def blocked(self) -> bool:
        """Whether any verdict is flagged; also when there is none, or the guard contradicts itself."""
        return self.action != "allow" or not self.verdicts or bool(self.flagged)

    @property
    def flagged(self) -> list[str]:
        """The ids of the flagged policies."""
        return [verdict.policy for verdict in self.verdicts if verdict.flagged]

    def require(self, asked: Mapping[str, Any]) -> Self:
        """This, when it answers a request with these fields.

        Raises:
            ValueError: a policy that was asked has no verdict, or one without an answer is let through unasked.
        """
        names = {name for verdict in self.verdicts for name in (verdict.policy, verdict.adapter)}
        wanted = [str(name) for name in asked.get("policies") or ()]
        if missing := [name for name in wanted if not name.startswith("tag:") and name not in names]:
            raise ValueError(f"it gives no verdict on {', '.join(missing)}")
        for verdict in self.verdicts:
            skipped = verdict.status == "skipped" and bool(self.flagged)
            if not (verdict.status == "ok" or verdict.flagged or skipped or asked.get("on_failure") == "open"):
                raise ValueError(f"{verdict.policy} did not answer ({verdict.status}), and is not flagged")
        return self


@dataclass(frozen=True)
class GuardPolicy:
    """A policy that a guard serves; ``adapter`` is its ``policy@digest``."""

    policy: str
    title: str
    adapter: str
    digest: str
    stage: str
    labels: tuple[str, ...]
    threshold: float

    def __post_init__(self) -> None:
        Policy(self.policy, self.title, "", self.labels, self.labels)  # what makes no policy raises
        Calibration(threshold=self.threshold)
        if not (self.adapter.startswith(f"{self.policy}@") and _DIGEST.fullmatch(self.digest)):
            raise ValueError(
                f"{self.policy}: its adapter is {self.adapter[:200]!r} with the digest {self.digest[:80]!r}"
            )


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
            key = f"{session} {url}".encode("utf-8", "surrogatepass")
            return url not in self._away, hashlib.blake2b(key, digest_size=8).digest()

        return sorted(self._urls, key=rank, reverse=True)

    async def ask_health(self, http: Http) -> None:
        """Find out who is away."""
        for url in self._urls:
            try:
                healthy = (await http.send(f"{url}/v1/guard/health", None, _PROBE_S))[0] == 200
            except ConfigError:
                healthy = False
            (self._away.discard if healthy else self._away.add)(url)

    def close(self) -> None:
        self._closed.set()

    def takes(self, url: str, status: int) -> bool:
        """Whether this answer stands: a server that is full or going down leaves its place to the next one."""
        if status >= 500:
            self.failed(url)
        return status not in _ELSEWHERE

    def failed(self, url: str) -> None:
        self._away.add(url)


def _watch(servers: weakref.ref[_Servers], closed: Event) -> None:
    """Ask for health every few seconds, until nobody needs it."""
    http = Waiting(_http)
    while not closed.wait(_EVERY_S) and (one := servers()) is not None:
        http(one.ask_health)
        del one
    http.close()


class Guard:
    """A guard server at ``url`` (``http://HOST:PORT``), whose key is read from ``$VLLM_API_KEY``; use it by ``with``.

    Several servers of the same policies: each conversation, by tenant (``cache_salt``) and opening, has its own; the
    next one answers where that cannot. A server that does not answer raises: no answer is no leave to go on.

    Args:
        timeout: seconds of a server's silence, and half of what its whole answer may take.
    """

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        self._servers = _Servers([url] if isinstance(url, str) else url)
        self._timeout, self._wait = timeout, Waiting(_http)

    def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """The verdicts on a conversation; ``fields`` are the request's: policies, deadline_ms, on_failure, cache_salt.

        Raises:
            PromptRefused: the server refuses the request.
            ConfigError: it does not answer, or fails.
            CheckFailed: what answers is no guard.
        """
        return self._wait(lambda http: _check(http, self._servers, self._timeout, messages, fields))

    def policies(self) -> list[GuardPolicy]:
        """What it serves; raises as :meth:`check` does."""
        url = f"{self._servers.order('')[0]}/v1/guard/policies"
        status, text = self._wait(lambda http: http.send(url, None, min(self._timeout, _LISTING_S)))
        return _read(url, status, text, _policies)

    def close(self) -> None:
        """Close its connections."""
        self._servers.close()
        self._wait.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGuard:
    """:class:`Guard` for asynchronous code. Cancelling a call ends its work on the server."""

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        self._servers = _Servers([url] if isinstance(url, str) else url)
        self._timeout, self._http = timeout, _http()

    async def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """See :meth:`Guard.check`."""
        return await _check(self._http, self._servers, self._timeout, messages, fields)

    async def close(self) -> None:
        """Close its connections."""
        self._servers.close()
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _http() -> Http:
    return Http(_CONNECTIONS)


async def _check(
    http: Http, servers: _Servers, timeout: float, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]
) -> GuardAnswer:
    """Ask from server to server, until one answers; asking twice does no harm."""
    session = session_id(messages, fields.get("cache_salt"))
    body = {"messages": list(messages), **fields}
    *others, last = servers.order(session)
    for url in (*others, last):
        try:
            status, text = await http.send(f"{url}/v1/guard", body, timeout, {SESSION: session})
        except Unreachable:
            servers.failed(url)
            if url is last:
                raise
        else:
            if servers.takes(url, status) or url is last:
                return _read(url, status, text, lambda said: typed(GuardAnswer, said).require(fields))
    raise AssertionError("the last server answers, or raises")


def _policies(said: Any) -> list[GuardPolicy]:
    known = [field.name for field in fields(GuardPolicy)]
    found = [typed(GuardPolicy, {name: item[name] for name in known}) for item in said["policies"]]
    live = [one.policy for one in found if one.stage == "live"]
    if len(set(live)) != len(live):
        raise ValueError("it serves a policy twice")
    return found


def _read(url: str, status: int, text: str, make: Callable[[Any], _Made]) -> _Made:
    if status != 200:
        refused = PromptRefused if status in (400, 413) else ConfigError
        raise refused(f"{named(url)} answered {status}: {text[:300]!r}")
    try:
        return make(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CheckFailed(f"{named(url)} is no guard: {str(error)[:300]}; start one with alora serve") from error
