"""A bound on the conversations and tokens under way: a burst waits seconds, and the rest is refused at once."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from alora.guard.reader import EngineDead, Overloaded

ON_CPU, ON_GPU = (32, 16_384), (256, 262_144)  # conversations and tokens: seconds of work for each
QUEUE = ("ALORA_QUEUE_REQUESTS", "ALORA_QUEUE_TOKENS")  # the bounds of a guard in vLLM's server, in its environment
_LONGEST_WAIT_S = 60.0


def admission(conversations: int | None, tokens: int | None, gpu: bool) -> "Admission":
    """The bounds that are given, and those of the device where one is None."""
    usual = ON_GPU if gpu else ON_CPU
    return Admission(conversations or usual[0], tokens or usual[1])


class Admission:
    """Lets in what fits; a conversation that is alone always fits, however long it is."""

    def __init__(self, conversations: int, tokens: int) -> None:
        self.conversations, self.tokens = conversations, tokens  # at most
        self.closing = False  # what is under way is answered, and nothing more is let in
        self.under_way = self._tokens = 0
        self._wait_s = 1.0

    @contextlib.contextmanager
    def place(self, share: float = 1.0) -> Iterator[Callable[[int], None]]:
        """A conversation's place, within a ``share`` of the bounds; call what it gives with the tokens to be read.

        Overloaded where there is none, EngineDead while the server is being stopped.
        """
        if self.closing:
            raise EngineDead("the server is being stopped")
        self._require(self.under_way < self.conversations * share, f"{self.under_way} conversations are under way")
        held, started = 0, time.monotonic()

        def take(tokens: int) -> None:
            nonlocal held
            fits = not self._tokens or self._tokens + tokens <= self.tokens * share
            self._require(fits, f"{self._tokens} tokens are under way, this conversation has {tokens}")
            held, self._tokens = tokens, self._tokens + tokens

        self.under_way += 1
        try:
            yield take
        finally:
            self.under_way -= 1
            self._tokens -= held
            if held:  # a place is free again after about as long as the last one took
                self._wait_s = min(max(1.0, time.monotonic() - started), _LONGEST_WAIT_S)

    def _require(self, fits: bool, why: str) -> None:
        if not fits:
            raise Overloaded(f"the guard is full: {why}; ask again later", math.ceil(self._wait_s))
