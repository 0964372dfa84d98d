"""HTTP to a server: every answer is bounded in bytes and in time, and no message shows the key."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from threading import Lock, Thread
from typing import Any, Generic, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import httpx2

from alora.config.secrets import HIDDEN, KEY, key_in, redacted
from alora.errors import ConfigError, PromptRefused
from alora.reading import LONGEST, printable

REQUEST_ID = "X-Request-Id"  # the guard repeats it at the beginning of what it answers, in its id
_REQUEST_IDS = re.compile("alora-[0-9a-f]{16}")
_KEPT = 2  # seconds that an idle connection is kept; vLLM closes one after 5
_WHOLE = 2  # times the silence: no answer takes longer, drop by drop or with headers without end


class Unreachable(ConfigError):
    """The server does not answer, or a proxy before it says so."""

    wait: float | None = None  # seconds after which it may be asked again, where it says that it is away for now


class Full(ConfigError):
    """The server takes no further requests for now."""

    wait: float | None = 0.0


class Http:
    """Requests with the key in the environment's variable ``key``, to one server where there are ``most`` at a time.

    Raises:
        ConfigError: the key cannot be sent, or the environment's proxy cannot be used.
    """

    def __init__(self, most: int | None = None, key: str = KEY) -> None:
        self._secret = key_in(key)
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        self._free = contextlib.nullcontext() if most is None else asyncio.Semaphore(most)
        limits = httpx2.Limits(keepalive_expiry=_KEPT)
        try:
            self._client = httpx2.AsyncClient(headers=headers, limits=limits)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"the environment's proxy cannot be used: {redacted(str(error))}; correct it") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def exchange(
        self, url: str, body: Mapping[str, Any] | None, silence: float, headers: Mapping[str, str] | None = None
    ) -> tuple[httpx2.Response, str]:
        """The answer to one request and its text; ``silence`` in seconds ends it, and :data:`_WHOLE` times as many in
        all, both after it has waited for its turn. With status 200 the text is as it came, for its values to be used:
        what is shown of it goes through :meth:`hidden`. In another one the key is hidden. With a :func:`request_id`
        among ``headers``, the answer bears no other one.

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
                self._free,
                asyncio.timeout(silence * _WHOLE),
                self._client.stream(method, url, content=content, headers=given, timeout=silence) as answer,
            ):
                text = await _whole_text(answer)
                await _require_own(answer, text, given.get(REQUEST_ID))
        except TimeoutError as error:
            raise _gone(address, f"no whole answer after {silence * _WHOLE:g} s") from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:  # a cut answer, no HTTP at all
            said = self.hidden(str(error))
            gone = _gone(address, " ".join(said.split())[:300] or type(error).__name__)
            if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):  # it may be starting again
                gone.wait = 0.0
            raise gone from (error if said == str(error) else None)
        if 300 <= answer.status_code < 400:
            place = named(self.hidden(str(answer.headers.get("Location"))))
            raise ConfigError(
                f"{address} answered {answer.status_code} and redirects to {place}, where neither key nor text follow; "
                "give the right address"
            )
        return answer, text if answer.status_code == 200 else self.hidden(text)

    def hidden(self, text: str) -> str:
        """``text`` of the server without the key; to be called before it is cut."""
        return hidden(text, self._secret)


def hidden(text: str, secret: str) -> str:
    """See :meth:`Http.hidden`."""
    return text.replace(secret, HIDDEN) if secret else text


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
    content = bytearray()
    async for piece in answer.aiter_bytes():
        content += piece
        if len(content) > LONGEST:
            raise OSError(f"its answer is longer than {LONGEST // 2**20} MiB")
    return content.decode(errors="replace")


class _Asynchronous(Protocol):
    async def close(self) -> None: ...


_Resource = TypeVar("_Resource", bound=_Asynchronous)
_Result = TypeVar("_Result")


class Waiting(Generic[_Resource]):
    """Lets any number of threads without an event loop use the asynchronous object that ``make`` returns. It runs in a
    thread of its own, which starts with the first call, also after a fork, and ends with :meth:`close`."""

    def __init__(self, make: Callable[[], _Resource]) -> None:
        self._make, self.resource = make, make()
        self._lock, self._process, self._closed = Lock(), 0, False
        self._thread, self._end = Thread(), lambda: None

    def __call__(self, work: Callable[[_Resource], Coroutine[Any, Any, _Result]]) -> _Result:
        with self._lock:
            if self._closed:
                raise _closed()
            if self._process != os.getpid():
                self._start()
            future = asyncio.run_coroutine_threadsafe(work(self.resource), self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._closed:
                raise _closed() from None
            raise
        finally:
            future.cancel()  # where the wait was interrupted

    def _start(self) -> None:
        if self._process:  # the connections are the parent's
            self.resource = self._make()
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=_run, args=(self.resource, begun), daemon=True)
        self._thread.start()
        self._loop, ended = begun.result()
        self._end = weakref.finalize(self, self._loop.call_soon_threadsafe, ended.set)
        self._end.atexit = False  # the thread is a daemon, and a forked child has none
        self._process = os.getpid()

    def close(self) -> None:
        """End the thread, and close its object."""
        with self._lock:
            self._closed = True
        if self._process == os.getpid():
            self._end()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _closed() -> ConfigError:
    return ConfigError("it is closed; make another one")


def _run(resource: _Asynchronous, begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def until_ended() -> None:
        ended = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), ended))
        await ended.wait()
        await resource.close()

    asyncio.run(until_ended())
