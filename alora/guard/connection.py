"""A connection to the guard's own server: h11's, closed where no request comes of it."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_SECONDS = 10.0  # from a connection's begin, or its last answer, until all headers of the next request are there


class TimedProtocol(H11Protocol):
    """uvicorn's protocol on h11, which bounds a header to 64 KiB (httptools reads one without end), with a deadline.

    uvicorn itself gives up a connection that is idle after an answer alone, and a byte now and then keeps it open.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end = self.loop.call_later(MOST_SECONDS, transport.close)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._end.cancel()

    def on_response_complete(self) -> None:
        self._end.cancel()
        self._end = self.loop.call_later(MOST_SECONDS, self.transport.close)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)
