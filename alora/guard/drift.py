"""Whether live traffic still looks like the rows that a policy was validated on."""

import math
from collections import deque
from collections.abc import Sequence

from alora.guard import exported_metrics as metrics
from alora.guard.reader import Served
from alora.verdict import TENTHS, population_stability, tenth
from alora.wire.native import PolicyVerdict

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


class Drifts:
    """Of all that is served, by version."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Drift] = {}

    def keep(self, served: Sequence[Served]) -> None:
        """Watch these, and forget the rest."""
        before, self._of = self._of, {}
        for item in served:
            self._of[item.version] = before.pop(item.version, None) or Drift(item.calibration.histogram)
        for name, _ in before:  # else an alert on what is not served any more goes on
            _export(name.rpartition("@")[0], None)

    def add(self, asked: Sequence[Served], verdicts: Sequence[PolicyVerdict]) -> None:
        """What was answered, in the order of ``asked``."""
        for item, verdict in zip(asked, verdicts, strict=True):
            if verdict.probability is not None and (drift := self._of.get(item.version)) is not None:
                drift.add(verdict.probability)
                _export(verdict.policy, drift.psi)

    def psi(self, item: Served) -> float | None:
        """Population stability index of a version's recent probabilities against validation rows; None if unknown."""
        drift = self._of.get(item.version)
        return None if drift is None else drift.psi


def _export(policy: str, psi: float | None) -> None:
    metrics.PSI.labels(policy).set(math.nan if psi is None else psi)
