"""Seconds of a benchmark: the wall's, or this process's CPU time where the machine has other work."""

from __future__ import annotations

import time


class BenchClock:
    """``now()`` in seconds, and a way to wait.

    With ``cpu`` the seconds are CPU time of this process, which at one thread is what a quiet machine's wall would
    show: the engine core runs in this process, so nothing of its work is missed. Waiting then costs no time at all:
    the clock is set forward. Otherwise the seconds are the wall's, and waiting is waiting.
    """

    def __init__(self, cpu: bool) -> None:
        self.cpu = cpu
        self._skipped = 0.0

    @property
    def name(self) -> str:
        """What the seconds are."""
        return "CPU time of the process at one thread" if self.cpu else "wall time"

    def now(self) -> float:
        """Seconds since some moment."""
        return self._skipped + (time.process_time() if self.cpu else time.perf_counter())

    def wait_until(self, moment: float) -> None:
        """Return when ``now()`` has reached ``moment``."""
        left = moment - self.now()
        if left <= 0:
            return
        if self.cpu:
            self._skipped += left
        else:
            time.sleep(left)
