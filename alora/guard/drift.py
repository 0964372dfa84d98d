"""Whether live traffic still looks like the rows that a policy was validated on."""

from collections import deque
from collections.abc import Sequence

from alora.verdict import TENTHS, population_stability, tenth

LAST = 1000  # verdicts that are compared


class Drift:
    """The last probabilities of one adapter against the histogram of its validation rows, where the bundle has one."""

    def __init__(self, reference: Sequence[int] | None) -> None:
        self._reference = reference
        self._last: deque[int] = deque()
        self._seen = [0] * TENTHS  # of the last

    def add(self, probability: float) -> None:
        self._last.append(tenth(probability))
        self._seen[self._last[-1]] += 1
        if len(self._last) > LAST:
            self._seen[self._last.popleft()] -= 1

    @property
    def psi(self) -> float | None:
        """The population stability index; None for too few rows or verdicts."""
        return population_stability(self._reference, self._seen)
