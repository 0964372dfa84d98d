"""Objects that hold connections: they are closed, and one for event loops is used from threads."""

import asyncio
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from threading import Lock, Thread
from typing import Any, Generic, Self, TypeVar

from alora.errors import ConfigError


class Closing(ABC):
    """Holds connections or memory until :meth:`close`; use it by ``with``."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """:class:`Closing` for asynchronous code."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_Resource = TypeVar("_Resource", bound=AsyncClosing)
_Result = TypeVar("_Result")


class Waiting(Generic[_Resource], Closing):
    """Lets any number of threads without an event loop use the asynchronous object that ``make`` returns. It runs in a
    thread of its own, which starts with the first call, also after a fork, and ends with :meth:`close`."""

    def __init__(self, make: Callable[[], _Resource]) -> None:
        self._make, self.resource = make, make()
        self._locks: dict[int, Lock] = {}  # by process: a fork may come while another thread holds the parent's
        self._process, self._closed = 0, False
        self._thread, self._end = Thread(), lambda: None

    def __call__(self, work: Callable[[_Resource], Coroutine[Any, Any, _Result]]) -> _Result:
        future = self.begin(work)
        try:
            return self.result(future)
        finally:
            future.cancel()  # where the wait was interrupted

    def begin(self, work: Callable[[_Resource], Coroutine[Any, Any, _Result]]) -> "Future[_Result]":
        """Start ``work``, of which :meth:`result` waits for what it returns."""
        with self._lock():
            if self._closed:
                raise _closed()
            if self._process != os.getpid():
                self._start()
            return asyncio.run_coroutine_threadsafe(work(self.resource), self._loop)

    def _lock(self) -> Lock:
        return self._locks.setdefault(os.getpid(), Lock())

    def result(self, future: "Future[_Result]") -> _Result:
        try:
            return future.result()
        except CancelledError:
            if self._closed:
                raise _closed() from None
            raise

    def _start(self) -> None:
        if self._process:  # the connections are the parent's
            self.resource = self._make()
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=_run, args=(self.resource, begun), daemon=True)
        self._thread.start()
        self._loop, ended = begun.result()
        self._end = weakref.finalize(self, self._loop.call_soon_threadsafe, ended.set)
        self._end.atexit = False
        self._process = os.getpid()

    def close(self) -> None:
        """End the thread, and close its object."""
        with self._lock():
            self._closed = True
        if self._process == os.getpid():
            self._end()
            self._thread.join()


def _closed() -> ConfigError:
    return ConfigError("it is closed; make another one")


def _run(resource: AsyncClosing, begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def until_ended() -> None:
        ended = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), ended))
        await ended.wait()
        await resource.close()

    asyncio.run(until_ended())
