"""Whether live traffic still looks like the rows that a policy was validated on."""

import math
from collections import deque
from collections.abc import Sequence

from alora.verdict import TENTHS, tenth

LEAST = 100  # rows and verdicts; below, the index of equal distributions is often above 0.1
LAST = 1000  # verdicts that are compared


class Drift:
    """The last probabilities of one adapter against the histogram of its validation rows, where the bundle has one."""

    def __init__(self, reference: Sequence[int] | None) -> None:
        self._reference = reference if reference is not None and sum(reference) >= LEAST else None
        self._last: deque[int] = deque()
        self._seen = [0] * TENTHS  # of the last

    def add(self, probability: float) -> None:
        """One more verdict."""
        self._last.append(tenth(probability))
        self._seen[self._last[-1]] += 1
        if len(self._last) > LAST:
            self._seen[self._last.popleft()] -= 1

    @property
    def psi(self) -> float | None:
        """The population stability index; None for too few rows or verdicts."""
        if self._reference is None or len(self._last) < LEAST:
            return None
        return population_stability(self._reference, self._seen)


def population_stability(before: Sequence[int], after: Sequence[int]) -> float:
    """``sum((q - p) * ln(q / p))`` over bins, half a count added to each so that empty ones count."""
    p_B, q_B = ([(count + 0.5) / (sum(counts) + 0.5 * len(counts)) for count in counts] for counts in (before, after))
    return math.fsum((q - p) * math.log(q / p) for p, q in zip(p_B, q_B, strict=True))
