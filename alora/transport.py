"""HTTP to a server: no answer is waited for without end, none is followed elsewhere, and no message shows the key."""

import asyncio
import contextlib
import json
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from threading import Lock, Thread
from typing import Any, Generic, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import httpx2

from alora.config.secrets import HIDDEN, KEY, key_in, redacted
from alora.errors import ConfigError, PromptRefused
from alora.text import printable

KEPT = 2  # seconds that an idle connection is kept; vLLM closes one after 5


class Unreachable(ConfigError):
    """The server does not answer, or a proxy before it says so."""

    wait: float | None = None  # seconds after which it may be asked again, where it says that it is away for now


class Full(ConfigError):
    """The server takes no further requests for now."""

    wait: float | None = 0.0


class Http:
    """Requests with the key in the environment's variable ``key``, to one server where there are ``most`` at a time.
    ConfigError where the key cannot be sent, or the environment's proxy cannot be used."""

    def __init__(self, most: int | None = None, key: str = KEY) -> None:
        self._secret = key_in(key)
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        with proxies_read():
            limits = httpx2.Limits(max_connections=most, keepalive_expiry=KEPT)
            self._client = httpx2.AsyncClient(headers=headers, limits=limits)

    async def close(self) -> None:
        await self._client.aclose()

    async def exchange(
        self, url: str, body: Mapping[str, Any] | None, silence: float, headers: Mapping[str, str] | None = None
    ) -> tuple[httpx2.Response, str]:
        """The answer to one request and its text, in which the key is hidden where the status is not 200. ``silence``
        in seconds ends it, once it has its turn. Unreachable where no whole answer comes, PromptRefused for a ``body``
        that is not JSON."""
        given, content = {**(headers or {}), "Content-Type": "application/json"}, None
        if body is not None:
            try:
                content = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise PromptRefused(
                    f"the request to {named(url)} is not JSON ({error}); give texts and numbers"
                ) from error
        method, timeout = "GET" if body is None else "POST", httpx2.Timeout(silence, pool=None)
        try:
            _ = urlsplit(url).port  # ValueError beyond 65535, which the system would be asked for
            answer = await self._client.request(method, url, content=content, headers=given, timeout=timeout)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            said = " ".join(hidden(str(error), self._secret).split())[:300] or type(error).__name__
            gone = Unreachable(f"{named(url)} does not answer ({said}); is the server up? alora serve starts one")
            if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):  # it may be starting again
                gone.wait = 0.0
            raise gone from None  # the cause may quote the key
        text = answer.content.decode(errors="replace")
        return answer, text if answer.status_code == 200 else hidden(text, self._secret)


@contextlib.contextmanager
def proxies_read() -> Iterator[None]:
    """ConfigError where a client that is made inside cannot use the environment's proxy."""
    try:
        yield
    except (ValueError, ImportError) as error:
        raise ConfigError(f"the environment's proxy cannot be used: {redacted(str(error))}; correct it") from error


def hidden(text: str, secret: str) -> str:
    """``text`` of a server without the key; to be called before it is cut."""
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


_KINDS = {400: PromptRefused, 413: PromptRefused, 429: Full, 502: Unreachable, 503: Unreachable, 504: Unreachable}
_REMEDIES = {
    401: f"; export its key as {KEY}",
    500: "; its log says why: other weights than were asked for, say",
    **dict.fromkeys((301, 302, 303, 307, 308), "; neither key nor text follow to another address: give the right one"),
}


def refusal(url: str, status: int, text: str, retry_after: str | None = None) -> ConfigError:
    """The error for an answer other than 200."""
    with contextlib.suppress(ValueError, LookupError, TypeError):  # else the text stands for itself
        text = str(json.loads(text)["error"]["message"])
    said = printable(" ".join(text[:2000].split())[:300])
    error = _KINDS.get(status, ConfigError)(f"{named(url)} answered {status}: {said}{_REMEDIES.get(status, '')}")
    if isinstance(error, (Full, Unreachable)):
        error.wait = wait_of(retry_after)
    return error


class _Asynchronous(Protocol):
    async def close(self) -> None: ...


_Resource = TypeVar("_Resource", bound=_Asynchronous)
_Result = TypeVar("_Result")


class Waiting(Generic[_Resource]):
    """Lets any number of threads without an event loop use the asynchronous object that ``make`` returns. Its loop runs
    in a thread of its own, which starts with the first call, also after a fork.

    anyio's portal keeps an interpreter from ending where nobody closes it.
    """

    def __init__(self, make: Callable[[], _Resource]) -> None:
        self._make, self.resource = make, make()
        self._lock, self._process, self._closed = Lock(), 0, False

    def __call__(self, work: Callable[[_Resource], Coroutine[Any, Any, _Result]]) -> _Result:
        with self._lock:
            if self._closed:
                raise ConfigError("it is closed; make another one")
            if self._process != os.getpid():
                self._start()
        return asyncio.run_coroutine_threadsafe(work(self.resource), self._loop).result()

    def _start(self) -> None:
        if self._process:  # the connections are the parent's
            self.resource = self._make()
        self._loop, self._process = asyncio.new_event_loop(), os.getpid()
        self._thread = Thread(target=_run, args=(self._loop,), daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._end.atexit = False  # the thread is a daemon, and a forked child has none

    def close(self) -> None:
        """Close its object, and end the thread."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed and self._process == os.getpid():
            asyncio.run_coroutine_threadsafe(self.resource.close(), self._loop).result()
            self._end()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
