"""Ask a guard server for every policy's verdict in one request. No torch, no tokenizer: HTTP and pydantic alone.

Of several equal guards, a conversation goes to its own first, where its KV is cached, and to the next one where that
cannot answer.
"""

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from alora.data.roles import usual_role
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.received import problems
from alora.transport import Full, Http, Unreachable, Waiting, named, refusal, root
from alora.wire.native import REQUEST_ID, FromGuard, GuardRequest, GuardResponse, PolicyCard, PolicyList

SESSION = "x-session-id"  # by which routers keep a conversation on its replica
_AWAY_S = 30.0  # for which a guard that did not answer comes last
_LISTING_S = 10.0  # of silence, before it says what it serves
_CONNECTIONS = 100
_OURS = "alora-"  # how the id of a request begins
_Answer = TypeVar("_Answer", bound=FromGuard)
_T = TypeVar("_T")
_logger = logging.getLogger("alora.client")


class Guard:
    """A guard server at ``url`` (``http://HOST:PORT``), whose key is read from ``$VLLM_API_KEY``; use it by ``with``.

    Several servers of the same policies: each conversation, by tenant (``cache_salt``) and opening, has its own; where
    that cannot answer, the next one does. Without an answer the call raises: silence is not consent.

    Args:
        timeout: seconds of a server's silence. A call that waits behind 100 others does not count as silence.
    """

    def __init__(self, url: str | Sequence[str], timeout: float = 60.0) -> None:
        self._wait = Waiting(lambda: AsyncGuard(url, timeout))

    def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardResponse:
        """The verdicts on a conversation; ``fields`` are the request's: policies, deadline_ms, on_failure, cache_salt.

        Raises:
            PromptRefused: the server refuses the request.
            ConfigError: it does not answer, or fails.
            CheckFailed: what answers is not a guard.
        """
        return self._wait(lambda guard: guard.check(messages, **fields))

    def policies(self) -> tuple[PolicyCard, ...]:
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
        urls = [root(server) for server in ([url] if isinstance(url, str) else url)]
        if not urls:
            raise ConfigError("no guard is given; give its URL, http://HOST:PORT")
        self._servers, self._timeout = Failover(urls), timeout
        self._http = {server: Http(_CONNECTIONS) for server in urls}  # one that hangs holds its own connections alone

    async def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardResponse:
        try:
            request = GuardRequest.model_validate({"messages": messages, **fields})
        except ValidationError as error:
            raise PromptRefused(problems(error.errors())) from None
        if request.stream:
            raise PromptRefused("check returns one whole answer; for verdicts as they come, POST to /v1/guard itself")
        body, session = {**fields, "messages": request.messages}, session_id(request.messages, request.cache_salt)

        async def ask(url: str) -> GuardResponse:
            own = _OURS + secrets.token_hex(8)
            headers = {SESSION: session, REQUEST_ID: own}
            answer = await self._ask(GuardResponse, url, "/v1/guard", self._timeout, body, headers)
            # A broken proxy may have left another's answer on the connection; some send an id of their own.
            if _OURS in answer.id and own not in answer.id:
                raise Unreachable(f"{named(url)} gave the answer to another request")
            return answer

        return await self._servers.first(session, ask)

    async def policies(self) -> tuple[PolicyCard, ...]:
        async def ask(url: str) -> PolicyList:
            return await self._ask(PolicyList, url, "/v1/guard/policies", min(self._timeout, _LISTING_S))

        return (await self._servers.first("", ask)).policies

    async def _ask(
        self, kind: type[_Answer], url: str, route: str, silence: float, body: Any = None, headers: Any = None
    ) -> _Answer:
        answer, text = await self._http[url].exchange(url + route, body, silence, headers)
        if answer.status_code != 200:
            raise refusal(url, answer.status_code, text, answer.headers.get("Retry-After"))
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            why = problems(error.errors())
            raise CheckFailed(f"{named(url)} is not a guard: {why}; start one with alora serve") from None

    async def close(self) -> None:
        for http in self._http.values():
            await http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def session_id(messages: Sequence[Mapping[str, Any]], tenant: str | None = None) -> str:
    """The same for all turns of a conversation, without personal data: a digest of tenant and opening.

    The opening ends with the first message that is not a system message, which an app's conversations share.
    """
    roles = (usual_role(str(message.get("role", message.get("from")))) for message in messages)
    length = next((n for n, role in enumerate(roles, 1) if role != "system"), len(messages))
    first = json.dumps([tenant, *messages[:length]], sort_keys=True, default=str)
    return hashlib.blake2b(first.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Failover:
    """The order in which several servers are asked: by rendezvous hashing, so that those of a dead one move alone."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._away = dict.fromkeys(urls, float("-inf"))  # until when a server comes last, by the monotonic clock

    def order(self, session: str) -> list[str]:
        """All servers, the conversation's own first."""
        now = time.monotonic()
        return sorted(self._away, key=lambda url: (self._away[url] <= now, _share(session, url)), reverse=True)

    async def first(self, session: str, ask: Callable[[str], Awaitable[_T]]) -> _T:
        """The answer of the first server that can answer. Where none can, the error is that of one that is full, or of
        the last; PromptRefused ends the asking."""
        failed: ConfigError | CheckFailed | None = None
        for url in self.order(session):
            try:
                return await ask(url)
            except PromptRefused:
                raise
            except (ConfigError, CheckFailed) as error:
                if isinstance(error, Unreachable):
                    self._away[url] = time.monotonic() + _AWAY_S
                if isinstance(error, Full) or not isinstance(failed, Full):
                    failed = error
                if len(self._away) > 1:
                    _logger.warning("%s cannot answer: %s", named(url), error)
        assert failed is not None
        raise failed


def _share(session: str, url: str) -> bytes:
    return hashlib.blake2b(f"{session} {url}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
