"""An evaluation as reports and manifests store it. Plain data: no numpy, no scipy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from alora.verdict import NEVER, OperatingPoint

FIGURES = ("accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "auprc", "recall_at_1_fpr",
           "recall_at_5_fpr", "ece")  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A figure with the 95 % bootstrap interval; None where the rows do not define it (AUROC of one class)."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for number in (self.value, self.low, self.high):
            if number is not None and not 0 <= number <= 1:
                raise ValueError(f"a figure is {number}, not 0 to 1")


@dataclass(frozen=True)
class Metrics:
    """Figures of one policy on ``rows`` rows, ``positives`` of them of the positive label, at ``threshold``."""

    rows: int
    positives: int
    threshold: float
    figures: Mapping[str, Estimate]

    def __post_init__(self) -> None:
        missing = [name for name in FIGURES if name not in self.figures]
        if missing:
            raise ValueError(f"figures lack {', '.join(missing)}")
        if not 0 <= self.positives <= self.rows or not self.threshold >= 0:
            raise ValueError(f"metrics say {self.positives} positives of {self.rows} rows at {self.threshold}")

    def value(self, figure: str) -> float | None:
        """The point estimate of one of :data:`FIGURES`."""
        return self.figures[figure].value


@dataclass(frozen=True)
class Lead:
    """How far the adapter is above another method on the same rows, with the paired 95 % bootstrap interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LabelFigures:
    """One label against the rest, at the verdicts that were given: precision, recall, F1 and rows that carry it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Evaluation:
    """One method's figures for one policy on one set of rows.

    ``method`` is "alora", "lora", "bag_of_words", ...; ``split`` is what the rows are to the adapter ("test").
    ``adapter_digest`` is None for a method that has no adapter. ``confusion`` counts rows: one line for each label that
    they carry, one column for each label that the verdict gives. ``rules`` are thresholds on a label's own probability,
    fitted like the verdict's, for each label of three or more. ``trained_on`` counts the rows that the adapter was
    trained on or calibrated by, or the bag of words was fitted to, as far as is known. ``leads`` of another method than
    the adapter say how far the adapter is above it: in AUROC, and in what the threshold was chosen for, each at its own
    point. ``regret`` is what the worse end of the threshold's interval would lose of that on these rows.
    """

    policy: str
    method: str
    split: str
    metrics: Metrics
    operating_point: OperatingPoint
    adapter_digest: str | None = None
    label_counts: Mapping[str, int] = field(default_factory=dict)
    truncated: int = 0
    confusion: tuple[tuple[int, ...], ...] = ()
    rules: Mapping[str, float] = field(default_factory=dict)
    trained_on: int = 0
    leads: Mapping[str, Lead] = field(default_factory=dict)
    regret: float | None = None

    def __post_init__(self) -> None:
        if self.metrics.threshold != self.operating_point.threshold:
            at = (self.metrics.threshold, self.operating_point.threshold)
            raise ValueError(f"{self.policy}: metrics.threshold is {at[0]}, and operating_point.threshold {at[1]}")
        counts, lines = list(self.label_counts.values()), self.confusion
        square = all(len(line) == len(counts) and min(line) >= 0 for line in lines)
        if lines and not (square and [sum(line) for line in lines] == counts):
            raise ValueError(f"{self.policy}: the confusion {lines} is not one of {dict(self.label_counts)}")
        if not (
            self.rules.keys() <= self.label_counts.keys() and all(0 <= rule <= NEVER for rule in self.rules.values())
        ):
            raise ValueError(f"{self.policy}: the rules {dict(self.rules)} are no thresholds of its labels")
        if not 0 <= self.trained_on <= self.metrics.rows:
            raise ValueError(f"{self.policy}: trained on {self.trained_on} of {self.metrics.rows} rows")
        if not 0 <= self.truncated <= self.metrics.rows or min(self.label_counts.values(), default=0) < 0:
            raise ValueError(f"{self.policy}: {self.truncated} truncated, {dict(self.label_counts)}: no counts of rows")

    @property
    def by_label(self) -> list[LabelFigures]:
        """Each label's figures, in the policy's order; 0 where a label is never predicted or never there."""
        figures = []
        for index, label in enumerate(self.label_counts if self.confusion else ()):
            hits, said = self.confusion[index][index], sum(line[index] for line in self.confusion)
            support = self.label_counts[label]
            shares = (hits / max(said, 1), hits / max(support, 1), 2 * hits / max(said + support, 1))
            figures.append(LabelFigures(label, *shares, support))
        return figures

    @property
    def macro_f1(self) -> float | None:
        """The mean F1 of the labels; None where their rows were not counted."""
        return sum(item.f1 for item in self.by_label) / len(self.confusion) if self.confusion else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"operating_point": self.operating_point.as_dict()}
