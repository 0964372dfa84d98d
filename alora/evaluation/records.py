"""An evaluation as reports and manifests store it. Plain data: no numpy, no scipy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from alora.verdict import OperatingPoint

FIGURES = ("accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "auprc", "recall_at_1_fpr",
           "recall_at_5_fpr", "ece")  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A figure, or one method's minus another's, with the 95 % bootstrap interval; None where the rows do not define it
    (AUROC of one class)."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Metrics:
    """Figures of one policy on ``rows`` rows, ``positives`` of them of the positive label, at ``threshold``."""

    rows: int
    positives: int
    threshold: float
    figures: Mapping[str, Estimate]

    def value(self, figure: str) -> float | None:
        """The point estimate of one of :data:`FIGURES`."""
        return self.figures[figure].value


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
    the adapter say how far the adapter is above it on the same rows, paired: in AUROC, and in what the threshold was
    chosen for, each at its own point. ``regret`` is what the worse end of the threshold's interval would lose of that
    on these rows.
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
    leads: Mapping[str, Estimate] = field(default_factory=dict)
    regret: float | None = None

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
