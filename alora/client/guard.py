"""Ask a guard server for every policy's verdict in one request. No torch, no tokenizer: HTTP and pydantic alone."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from alora.client.failover import SESSION, Failover, session_id
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.transport import Http, Unreachable, Waiting, named, refusal, root
from alora.wire.native import REQUEST_ID, FromGuard, GuardRequest, GuardResponse, PolicyCard, PolicyList, problems

_LISTING_S = 10.0  # of silence, before it says what it serves
_CONNECTIONS = 100
_OURS = "alora-"  # how the id of a request begins
_Answer = TypeVar("_Answer", bound=FromGuard)


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
            raise PromptRefused(problems(error.errors(include_input=False))) from None
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
            why = problems(error.errors(include_input=False))
            raise CheckFailed(f"{named(url)} is not a guard: {why}; start one with alora serve") from None

    async def close(self) -> None:
        for http in self._http.values():
            await http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
