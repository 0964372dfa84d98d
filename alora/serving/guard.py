"""Ask a guard server for every policy's verdict in one request. No torch, no tokenizer: HTTP alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from alora.config.secrets import KEY, redacted
from alora.errors import CheckFailed, ConfigError
from alora.typed import typed


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


class Guard:
    """A guard server at ``url`` (``http://HOST:PORT``), whose key is read from ``$VLLM_API_KEY``; use it by ``with``.

    A server that does not answer raises: no answer is no leave to go on.
    """

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self._http = httpx2.Client(**_options(url, timeout))

    def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """The verdicts on a conversation; ``fields`` are the request's: policies, deadline_ms, on_failure, cache_salt.

        Raises:
            ConfigError: the server refuses the request, or does not answer.
            CheckFailed: what answers is no guard.
        """
        try:
            return _answer(self._http.post("/v1/guard", json={"messages": list(messages), **fields}))
        except httpx2.TransportError as error:
            raise _unreachable(self._http, error) from error

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGuard:
    """:class:`Guard` for asynchronous code. Cancelling a call ends its work on the server."""

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self._http = httpx2.AsyncClient(**_options(url, timeout))

    async def check(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> GuardAnswer:
        """See :meth:`Guard.check`."""
        try:
            return _answer(await self._http.post("/v1/guard", json={"messages": list(messages), **fields}))
        except httpx2.TransportError as error:
            raise _unreachable(self._http, error) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _options(url: str, timeout: float) -> dict[str, Any]:
    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = url.rstrip("/").removesuffix("/v1")
    return {"base_url": base, "headers": headers, "timeout": timeout, "follow_redirects": False}


def _answer(response: httpx2.Response) -> GuardAnswer:
    if response.status_code != 200:
        raise ConfigError(f"{_place(response.url)} answered {response.status_code}: {response.text[:300]!r}")
    try:
        return typed(GuardAnswer, response.json())
    except (ValueError, TypeError) as error:
        raise CheckFailed(f"{_place(response.url)} is no guard: {error}; start one with alora serve") from error


def _unreachable(http: httpx2.Client | httpx2.AsyncClient, error: Exception) -> ConfigError:
    reason = str(error) or type(error).__name__
    return ConfigError(f"{_place(http.base_url)} does not answer ({reason}); alora serve starts a guard")


def _place(url: httpx2.URL) -> str:
    return redacted(str(url))
