"""Ask a guard server for every policy's verdict in one request. No torch, no tokenizer: HTTP alone."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from httpx2 import Response

from alora.client.failover import SESSION, Failover, session_id
from alora.errors import CheckFailed, ConfigError, PromptRefused, one_line
from alora.policy import Policy
from alora.reading import printable
from alora.received import decode
from alora.transport import Http, Waiting, named, refusal, request_id, root
from alora.verdict import Calibration

_LISTING_S = 10.0  # of silence, before it says what it serves
_CONNECTIONS = 100
_DIGEST = re.compile("[0-9a-f]{8,128}")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class GuardVerdict:
    """One policy's answer; ``flagged`` without a probability: it did not answer, and its failure policy decides.

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
        if self.status == "ok" and None in (self.label, self.probability, self.threshold, self.probabilities):
            raise ValueError(f"{self.policy}: a verdict lacks label, probability, threshold or probabilities")


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
        """Whether any verdict is flagged; also when there is none, or the guard contradicts itself."""
        return self.action != "allow" or not self.verdicts or bool(self.flagged)

    @property
    def flagged(self) -> list[str]:
        return [verdict.policy for verdict in self.verdicts if verdict.flagged]

    def require(self, asked: Mapping[str, Any]) -> Self:
        """This answer, checked against the request's fields.

        Raises:
            ValueError: a policy that was asked has no verdict, or one without an answer is let through unasked.
        """
        policies, adapters = ({getattr(one, name) for one in self.verdicts} for name in ("policy", "adapter"))
        wanted = [str(name) for name in asked.get("policies") or () if not str(name).startswith("tag:")]
        if missing := [name for name in wanted if name not in (adapters if "@" in name else policies)]:
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


class Guard:
    """A guard server at ``url`` (``http://HOST:PORT``), whose key is read from ``$VLLM_API_KEY``; use it by ``with``.

    Several servers of the same policies: each conversation, by tenant (``cache_salt``) and opening, has its own; where
    that cannot answer, the next one does. Without an answer the call raises: silence is not consent.

    Args:
        timeout: seconds of a server's silence, and half of what its whole answer may take. A call that waits behind
            100 others does not count as silence.
    """

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        self._wait = Waiting(lambda: AsyncGuard(url, timeout))

    def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """The verdicts on a conversation; ``fields`` are the request's: policies, deadline_ms, on_failure, cache_salt.

        Raises:
            PromptRefused: the server refuses the request.
            ConfigError: it does not answer, or fails.
            CheckFailed: what answers is not a guard.
        """
        return self._wait(lambda guard: guard.check(messages, **fields))

    def policies(self) -> list[GuardPolicy]:
        """What it serves; raises as :meth:`check` does."""
        return self._wait(lambda guard: guard.policies())

    def close(self) -> None:
        self._wait.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGuard:
    """:class:`Guard` for asynchronous code. Cancelling a call ends its work on the server."""

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        urls = [url] if isinstance(url, str) or not isinstance(url, Iterable) else [*url]
        if not urls:
            raise ConfigError("no guard is given; give its URL, http://HOST:PORT")
        if strange := [server for server in urls if not isinstance(server, str)]:
            raise ConfigError(f"a guard's URL is {str(strange[0])[:80]}; give http://HOST:PORT, a text for each guard")
        if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise ConfigError(f"timeout is {str(timeout)[:80]!r}; give seconds, a number above 0")
        self._servers = Failover([*map(root, urls)])
        # One that hangs holds its own connections alone.
        self._timeout, self._http = timeout, {root(server): Http(_CONNECTIONS) for server in urls}

    async def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
            raise PromptRefused('messages are a list of {"role": ..., "content": ...}, one for each turn')
        if fields.get("stream"):
            raise PromptRefused("check returns one whole answer; for verdicts as they come, POST to /v1/guard itself")
        try:
            session = session_id(messages, fields.get("cache_salt"))
        except (TypeError, ValueError, RecursionError) as error:
            raise PromptRefused(f"the messages are not JSON ({one_line(error)}); give texts and numbers") from error
        body = {"messages": list(messages), **fields}

        async def ask(url: str) -> GuardAnswer:
            http = self._http[url]
            sent = await http.exchange(f"{url}/v1/guard", body, self._timeout, {SESSION: session} | request_id())
            return _read(url, http, *sent, lambda said: decode(GuardAnswer, said).require(fields))

        return await self._servers.first(session, ask)

    async def policies(self) -> list[GuardPolicy]:
        async def ask(url: str) -> list[GuardPolicy]:
            http = self._http[url]
            sent = await http.exchange(f"{url}/v1/guard/policies", None, min(self._timeout, _LISTING_S))
            return _read(url, http, *sent, _policies)

        return await self._servers.first("", ask)

    async def close(self) -> None:
        for http in self._http.values():
            await http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _policies(said: Any) -> list[GuardPolicy]:
    known = [field.name for field in fields(GuardPolicy)]
    policies = [decode(GuardPolicy, {name: item[name] for name in known}) for item in said["policies"]]
    live = [policy.policy for policy in policies if policy.stage == "live"]
    if len(set(live)) != len(live):
        raise ValueError("it serves a policy twice")
    return policies


def _read(url: str, http: Http, answer: Response, text: str, make: Callable[[Any], _Made]) -> _Made:
    if answer.status_code != 200:
        raise refusal(url, answer.status_code, text, answer.headers.get("Retry-After"))
    try:
        return make(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        shown = http.hidden(text) == text
        why = printable(str(error)[:300]) if shown else "its answer, which holds the key and is not shown, does not fit"
        raise CheckFailed(f"{named(url)} is not a guard: {why}; start one with alora serve") from (
            error if shown else None
        )
