"""Warnings from a run's own figures: what speaks against its adapter, in plain words with stable codes."""

from collections.abc import Iterator, Sequence

from alora.data.findings import WARNING, Finding
from alora.data.row_checks import LEAST_POSITIVES, MORE_POSITIVES
from alora.evaluation.records import Evaluation

LEAST_ROWS = 50  # measured on
LARGE = 0.05  # of F1, or of a row's cost where a false alarm and a miss together cost 2
_FIGURES = {"auroc": "AUROC", "f1": "F1 at its own threshold", "cost": "cost at its own threshold"}
# What an adapter must beat: method → code, name, what to do.
_CHEAPER = {
    "bag_of_words": (
        "WORDS_BEAT_ADAPTER",
        "a bag of words",
        "word counts alone solve these rows; use them without an adapter, or add rows that differ in meaning alone",
    ),
    "prompt": (
        "PROMPT_BEATS_ADAPTER",
        "the base with the rule in its prompt",
        "use the base alone, or add training rows",
    ),
}


def doubts(evaluations: Sequence[Evaluation]) -> list[Finding]:
    """Warnings about each adapter among ``evaluations``, compared with the other methods on its policy's rows.

    ``WORDS_BEAT_ADAPTER`` and ``PROMPT_BEATS_ADAPTER``: the whole paired interval is on the other method's side, in
    AUROC or in what the threshold was chosen for. ``AUROC_COVERS_CHANCE`` goes by the lower bound of its interval.
    ``LEAK``: it knows some of the rows; ``ONE_CLASS``: there is no AUROC. ``FEW_ROWS`` is of the rows that the figures
    are of, ``FEW_POSITIVES`` of those that the threshold was fitted on. ``THRESHOLD_UNSURE``: the threshold's interval
    spans values that are far worse. ``RECALL_LOW``, ``PRECISION_LOW``: below one half at the chosen point.
    """
    return [
        Finding(WARNING, code, own.policy, text)
        for own in evaluations
        if own.adapter_digest is not None
        for code, text in (
            *_against(own, [other for other in evaluations if other.policy == own.policy]),
            *_against_point(own),
        )
    ]


def _against(own: Evaluation, others: Sequence[Evaluation]) -> Iterator[tuple[str, str]]:
    rows = f"{own.metrics.rows} {spoken(own.split)} rows"
    if own.trained_on:
        yield (
            "LEAK",
            f"{own.trained_on} of its {rows} are rows that it was trained on or "
            "calibrated by, so its figures on new rows may be far lower; measure on others",
        )
    auroc = own.metrics.figures["auroc"]
    if auroc.value is None:
        yield "ONE_CLASS", f"its {rows} are all of one class, so nothing says whether it works; add rows of the other"
        return
    if own.metrics.rows < LEAST_ROWS:
        yield "FEW_ROWS", f"its figures are of {rows}, which is few; measure on more rows"
    low = auroc.value if auroc.low is None else auroc.low
    if low <= 0.5:
        interval = "" if auroc.high is None else f" (95 % interval {auroc.low:.3f} to {auroc.high:.3f})"
        yield (
            "AUROC_COVERS_CHANCE",
            f"AUROC {auroc.value:.3f}{interval} on {rows} is not clearly above chance; add rows, look at the labels, "
            "or take a larger base",
        )
    for other in others:
        if other.method not in _CHEAPER or 0 < other.metrics.rows <= 2 * other.trained_on:
            continue  # the latter was fitted to most of them, and only repeats what it read
        code, name, remedy = _CHEAPER[other.method]
        worse = {figure: gap for figure, gap in other.leads.items() if gap.high is not None and gap.high < 0}
        if worse:
            by = ", ".join(f"{_FIGURES[figure]} by {-gap.value:.3f} (at least {-gap.high:.3f})"  # pyright: ignore
                           for figure, gap in worse.items())  # fmt: skip
            yield code, f"{name} is better on {rows}: {by}; {remedy}"


def _against_point(own: Evaluation) -> Iterator[tuple[str, str]]:
    point = own.operating_point
    if point.rows and point.positives < LEAST_POSITIVES:
        fitted = f"its threshold was fitted on {point.rows} rows, {point.positives} of them positive"
        yield "FEW_POSITIVES", f"{fitted}, and needs {LEAST_POSITIVES}; {MORE_POSITIVES}"
    if own.regret is not None and own.regret >= LARGE:
        lost = "F1" if point.target == "f1" else "the cost of a row"
        yield (
            "THRESHOLD_UNSURE",
            f"thresholds from {point.threshold_low:.3f} to {point.threshold_high:.3f} are as likely as "
            f"{point.threshold:.3f}, and the worse end would lose {own.regret:.3f} of {lost}; add labelled rows",
        )
    for figure, meaning in (("recall", "it misses most violations"), ("precision", "most of what it flags is none")):
        value = own.metrics.value(figure)
        if value is not None and value < 0.5:
            text = f"{figure} is {value:.3f} at its threshold: {meaning}; add rows, or set evaluation.target"
            yield f"{figure.upper()}_LOW", text


def spoken(split: str) -> str:
    """What rows are to the adapter, in words."""
    return split.replace("_", "-")
