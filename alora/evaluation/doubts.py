"""Warnings from a run's own figures: what speaks against its adapter, in plain words with stable codes."""

from collections.abc import Iterator, Sequence

from alora.data.check import LEAST_POSITIVES, MORE_POSITIVES
from alora.evaluation.calibration import TEMPERATURE_BOUNDS, at_bound
from alora.evaluation.records import Evaluation
from alora.findings import WARNING, Finding

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

    ``WORDS_BEAT_ADAPTER`` and ``PROMPT_BEATS_ADAPTER`` go by AUROC in three digits; ``AUROC_COVERS_CHANCE`` by the
    lower bound of its interval; ``LEAK``: it knows some of the rows; ``ONE_CLASS``: there is no AUROC;
    ``FEW_POSITIVES`` is of the rows that the threshold was fitted on, ``CALIBRATION_AT_BOUND`` of the temperature.
    """
    return [
        Finding(WARNING, code, own.policy, text)
        for own in evaluations
        if own.adapter_digest is not None
        for code, text in _against(own, [other for other in evaluations if other.policy == own.policy])
    ]


def _against(own: Evaluation, others: Sequence[Evaluation]) -> Iterator[tuple[str, str]]:
    if own.trained_on:
        yield (
            "LEAK",
            f"{own.trained_on} of its {own.metrics.rows} {own.split} rows are rows that it was trained on or "
            "calibrated by, so its figures on new rows may be far lower; measure on others",
        )
    auroc, rows = own.metrics.figures["auroc"], f"{own.metrics.rows} {own.split} rows"
    if auroc.value is None:
        yield "ONE_CLASS", f"its {rows} are all of one class, so nothing says whether it works; add rows of the other"
        return
    low = auroc.value if auroc.low is None else auroc.low
    if low <= 0.5:
        interval = "" if auroc.high is None else f" (95 % interval {low:.3f} to {auroc.high:.3f})"
        yield (
            "AUROC_COVERS_CHANCE",
            f"AUROC {auroc.value:.3f}{interval} on {rows} is not clearly above chance; add rows, look at the labels, "
            "or take a larger base",
        )
    for other in others:
        code, name, remedy = _CHEAPER.get(other.method, ("", "", ""))
        value = other.metrics.value("auroc")
        if 0 < other.metrics.rows <= 2 * other.trained_on:
            continue  # it was fitted to most of them, and only repeats what it read
        if code and value is not None and round(value, 3) >= round(auroc.value, 3):
            yield code, f"AUROC {auroc.value:.3f} on {rows} is not above {value:.3f} of {name}; {remedy}"
    point = own.operating_point
    if point.rows and point.positives < LEAST_POSITIVES:
        fitted = f"its threshold was fitted on {point.rows} rows, {point.positives} of them positive"
        yield "FEW_POSITIVES", f"{fitted}, and needs {LEAST_POSITIVES}; {MORE_POSITIVES}"
    if at_bound(point.temperature):
        low, high = TEMPERATURE_BOUNDS
        yield (
            "CALIBRATION_AT_BOUND",
            f"temperature {point.temperature:.3g} is at the bound of its fit ({low:g} to {high:g}), so "
            "its probabilities mean little; add validation rows, or train less",
        )
