"""HTTP to a server that may be anything: every answer is bounded in bytes and in time, and none shows the key."""

import asyncio
import contextlib
import json
import math
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from alora.closing import AsyncClosing
from alora.config.secrets import HIDDEN, KEY, key_in, redacted
from alora.errors import ConfigError, PromptRefused
from alora.reading import LONGEST, printable

REQUEST_ID = "X-Request-Id"  # the guard and vLLM repeat it at the beginning of what they answer, in its id
_REQUEST_IDS = re.compile("alora-[0-9a-f]{16}")
_KEPT = 2  # seconds that an idle connection is kept; vLLM closes one after 5
_TELLING = 20  # characters of a key that is no word of an answer by chance
_WHOLE = 2  # times the silence: no answer takes longer, drop by drop or with headers without end


class Unreachable(ConfigError):
    """The server does not answer, or a proxy before it says so."""

    wait: float | None = None  # seconds after which it may be asked again, where it says that it is away for now
    silent = False  # nothing came in the time it had, as of an engine that hangs


class Full(ConfigError):
    """The server takes no further requests for now."""

    wait: float | None = 0.0


class Http(AsyncClosing):
    """Requests with the key in the environment's variable ``key``, to one server where there are ``most`` at a time.

    Raises:
        ConfigError: the key cannot be sent, or the environment's proxy cannot be used.
    """

    def __init__(self, most: int | None = None, key: str = KEY) -> None:
        headers, self._secret = {"Accept-Encoding": "identity"}, key_in(key)
        if self._secret:
            headers["Authorization"] = f"Bearer {self._secret}"
        self._free = contextlib.nullcontext() if most is None else asyncio.Semaphore(most)
        self._heard = self._lost = -math.inf  # when an answer came last, or stayed out, by the monotonic clock
        limits = httpx2.Limits(keepalive_expiry=_KEPT)
        try:
            self._client = httpx2.AsyncClient(headers=headers, limits=limits)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"the environment's proxy cannot be used: {redacted(str(error))}; correct it") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def send(
        self, url: str, body: Mapping[str, Any] | None, silence: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Status and text of :meth:`exchange`."""
        answer, text = await self.exchange(url, body, silence, headers)
        return answer.status_code, text

    async def exchange(
        self, url: str, body: Mapping[str, Any] | None, silence: float, headers: Mapping[str, str] | None = None
    ) -> tuple[httpx2.Response, str]:
        """The answer to one request and its text, in which the key is hidden; ``silence`` in seconds ends it, and
        :data:`_WHOLE` times as many in all. With status 200 and a short key, which may be a word (``test``), the text
        is as it came, for its values to be used: what is shown of it goes through :meth:`hidden`. With a
        :func:`request_id` among ``headers``, the answer bears no other one.

        Raises:
            Unreachable: no whole answer comes, or one that is too long, or to another request.
            PromptRefused: ``body`` is not JSON.
            ConfigError: the server redirects to another.
        """
        address = named(url)
        try:
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise PromptRefused(f"the request to {address} is not JSON ({error}); give texts and numbers") from error
        given = {**(headers or {}), **({} if body is None else {"Content-Type": "application/json"})}
        method = "GET" if body is None else "POST"
        try:
            _ = urlsplit(url).port  # ValueError beyond 65535, which httpx2 would pass on to the system
            # httpx2 bounds the silence between two bytes alone.
            async with (
                self._turn(address, silence),
                asyncio.timeout(silence * _WHOLE),
                self._client.stream(method, url, content=content, headers=given, timeout=silence) as answer,
            ):
                text = await _whole_text(answer)
                await _require_own(answer, text, given.get(REQUEST_ID))
                self._heard = time.monotonic()
        except Unreachable:  # of _turn; it is a ValueError, too
            raise
        except TimeoutError as error:
            raise self._late(address, f"no whole answer after {silence * _WHOLE:g} s") from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:  # a cut answer, no HTTP at all
            said = self.hidden(str(error))
            late = isinstance(error, httpx2.TimeoutException)
            gone = (self._late if late else _gone)(address, " ".join(said.split())[:300] or type(error).__name__)
            if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):  # it may be starting again
                gone.wait = 0.0
            raise gone from (error if said == str(error) else None)
        if 300 <= answer.status_code < 400:
            place = named(self.hidden(str(answer.headers.get("Location"))))
            raise ConfigError(
                f"{address} answered {answer.status_code} and redirects to {place}, where neither key nor text follow; "
                "give the right address"
            )
        as_it_came = answer.status_code == 200 and len(self._secret) < _TELLING
        return answer, text if as_it_came else self.hidden(text)

    @contextlib.asynccontextmanager
    async def _turn(self, address: str, silence: float) -> AsyncGenerator[None]:
        """Wait until a request may go out: no silence of the server, unless those before it have no answer."""
        began = time.monotonic()
        async with self._free:
            heard = max(began, self._heard)
            if self._lost > heard and time.monotonic() - heard > silence / 2:
                raise self._late(address, "nor did it to the requests before this one")
            yield

    def _late(self, address: str, reason: str) -> Unreachable:
        self._lost = time.monotonic()
        error = _gone(address, reason)
        error.silent = True
        return error

    def hidden(self, text: str) -> str:
        """``text`` of the server without the key; to be called before it is cut, or read as JSON to be shown."""
        return hidden(text, self._secret)


def hidden(text: str, secret: str) -> str:
    """See :meth:`Http.hidden`."""
    if not secret:
        return text
    text = text.replace(secret, HIDDEN)
    return _escaped(secret).sub(HIDDEN, text) if "\\" in text else text


def _escaped(secret: str) -> re.Pattern[str]:
    """``secret`` with any of its characters escaped, as JSON and Python's repr() do."""
    forms = (re.escape(it) if it.isalnum() else rf"\\{{0,2}}{re.escape(it)}" for it in secret)
    return re.compile("".join(rf"(?:{form}|\\u00(?i:{ord(it):02x}))" for it, form in zip(secret, forms, strict=True)))


def root(url: str) -> str:
    """``url`` without the ``/v1`` at its end."""
    return url.rstrip("/").removesuffix("/v1")


def named(url: str) -> str:
    """``url`` for a message."""
    return redacted(url).encode("utf-8", "backslashreplace").decode()[:300]


def wait_of(retry_after: str | None) -> float:
    """Seconds of the header Retry-After: 0 where it is missing, or a date."""
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        return 0.0


# vLLM's words where --max-num-queued-reqs or --max-num-queued-tokens is reached, with 503 (vllm/exceptions.py, 0.32).
_QUEUE_FULL = ("cannot accept new requests", "prefill token backlog limit")


def refusal(url: str, status: int, text: str, retry_after: str | None = None) -> ConfigError:
    """The error for an answer other than 200."""
    kinds = {400: PromptRefused, 413: PromptRefused, 429: Full, 502: Unreachable, 503: Unreachable, 504: Unreachable}
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # else the text stands for itself
        text = str(json.loads(text)["error"]["message"])
    if any(words in text for words in _QUEUE_FULL):
        kinds[503] = Full
    remedies = {401: f"; export its key as {KEY}", 500: "; its log says why: other weights than were asked for, say"}
    error = kinds.get(status, ConfigError)(
        f"{named(url)} answered {status}: {printable(' '.join(text[:2000].split())[:300])}{remedies.get(status, '')}"
    )
    if isinstance(error, (Full, Unreachable)):
        error.wait = wait_of(retry_after)
    if isinstance(error, Unreachable):
        error.silent = status == 504  # a proxy waited for it in vain
    return error


def _gone(address: str, reason: str) -> Unreachable:
    return Unreachable(f"{address} does not answer ({reason}); is the server up? alora serve starts one")


def request_id() -> dict[str, str]:
    """The header that names one request."""
    return {REQUEST_ID: f"alora-{secrets.token_hex(8)}"}


async def _require_own(answer: httpx2.Response, text: str, own: str | None) -> None:
    """httpx2 (2.16) takes bytes behind an answer, as a broken proxy may send, for the answer to the next request."""
    if own and answer.status_code == 200 and {own, *_REQUEST_IDS.findall(text[:200])} != {own}:
        await answer.extensions["network_stream"].aclose()  # or the next answer on it would be another's, too
        raise httpx2.RemoteProtocolError("its answer is to another request")


async def _whole_text(answer: httpx2.Response) -> str:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":  # a few bytes may become any number
        raise OSError(f"its answer is compressed by {encoding!r}, which was not requested")
    content = bytearray()
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > LONGEST:
            raise OSError(f"its answer is longer than {LONGEST // 2**20} MiB")
    return content.decode(errors="replace")
