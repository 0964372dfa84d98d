"""``report.html``: one evaluation as one file that needs no network, and the overview of several.

:class:`Page` holds the data, ``report.html.j2`` the layout. Texts of conversations, ids, labels and
policies are hostile: the template escapes all of them, control characters are written out, and the page's own policy
lets no script run but ``report.js``.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from alora.config.schema import EvaluationSettings
from alora.data.findings import Finding
from alora.evaluation.bag_of_words import likelier_labels
from alora.evaluation.doubts import doubts, spoken
from alora.evaluation.html import page_template
from alora.evaluation.metrics import Flags, Floats, Sweep, reliability_points, roc_points, sweep
from alora.evaluation.records import Evaluation
from alora.evaluation.tables import (
    HEADINGS,
    Judged,
    Scored,
    describe_operating_point,
    estimate_cell,
    figure_rows,
    table_rows,
)
from alora.training.layout import PAGE_MARK

SHOWN, EXCERPT = 20, 600  # rows in a list, characters of a text
_WIDTH, _HEIGHT = 300, 200  # of a chart's plot
_METHODS = {"alora": "adapter (aLoRA)", "lora": "adapter (LoRA)", "prompt": "base with the rule in the prompt",
            "bag_of_words": "bag of words"}  # fmt: skip


@dataclass(frozen=True)
class Page:
    """The data of a page. ``losses`` are training's and validation's, by step; ``facts`` are tables for its end:
    title → name → value. ``warnings`` are the training's own warnings about the adapter.
    """

    judged: Judged
    settings: EvaluationSettings
    losses: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    warnings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Line:
    """One line of a chart, as an SVG path, with its number among the colours."""

    name: str
    path: str
    colour: int
    dots: Sequence[tuple[float, float, float]] = ()  # with their radius


@dataclass(frozen=True)
class Chart:
    """Axes from 0 with their ends, and lines; ``diagonal``: the line of chance, or of perfect calibration."""

    title: str
    across: str
    up: str
    lines: Sequence[Line]
    ends: tuple[float, float] = (1.0, 1.0)
    diagonal: bool = False

    @property
    def ticks(self) -> list[tuple[float, str, str]]:
        """Share of each axis, and its labels across and up."""
        right, top = self.ends
        return [(share, f"{share * right:.3g}", f"{share * top:.3g}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def render_page(page: Page) -> str:
    own = page.judged.methods[0].evaluation
    table = zip(*(figure_rows(evaluation.metrics) for evaluation in page.judged.evaluations), strict=True)
    doubted, count = _doubted(page)
    return _render(
        title=page.judged.policy.title,
        policy=page.judged.policy,
        own=own,
        split=spoken(own.split),
        findings=[*doubts(page.judged.evaluations), *page.warnings],
        methods=[_named(evaluation.method) for evaluation in page.judged.evaluations],
        figures=[(cells[0][0], [value for _, value in cells]) for cells in table],
        operating_point=describe_operating_point(own.operating_point),
        majority=_majority(own),
        slider=_slider(page),
        charts=_charts(page),
        labels=_by_label(page),
        mistakes=_mistakes(page),
        doubted=doubted,
        doubted_count=count,
        quotes=page.settings.report_texts,
        facts=page.facts,
        estimate=estimate_cell,
    )


def render_overview(pages: Mapping[str, Sequence[Evaluation]], left_out: Mapping[str, str]) -> str:
    """An overview of several policies: the address of each one's page → its evaluations."""
    rows = [
        (address, table_rows(evaluations), doubts(evaluations), evaluations[0].policy)
        for address, evaluations in pages.items()
    ]
    return _render(title=f"{len(pages)} policies", overview=rows, headings=HEADINGS[1:], left_out=left_out)


def _render(**values: Any) -> str:
    home = Path(__file__).parent
    script = (home / "report.js").read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = page_template(home / "report.html.j2", trim_blocks=True, lstrip_blocks=True)
    empty = {"overview": None, "width": _WIDTH, "height": _HEIGHT}
    return template.render(empty | values, mark=PAGE_MARK, script=script, digest=digest).lstrip()


def _named(method: str) -> str:
    return _METHODS.get(method, method)


def _majority(own: Evaluation) -> tuple[str, int]:
    """The answer that is right for most rows, and for how many, as the table counts: the positive label, or another."""
    positive, *others = own.label_counts
    positives, rows = own.metrics.positives, own.metrics.rows
    if 2 * positives >= rows:
        return positive, positives
    return others[0] if len(others) == 1 else f"not {positive}", rows - positives


def _slider(page: Page) -> str:
    """The script's input, as JSON: how many rows of the positive label, and of the others, have each of the
    probabilities that occur; highest first."""
    own = page.judged.methods[0]
    split, point = own.evaluation.split, own.evaluation.operating_point
    curve = _sweep(own, split)
    alarm, miss = point.costs or (1.0, 1.0)
    counts = {"values": curve.values_K, "hits": curve.hits_SK1[0], "alarms": curve.alarms_SK1[0]}
    asked = {"threshold": point.threshold, "alarm": alarm, "miss": miss}
    return json.dumps({name: count.tolist() for name, count in counts.items()} | asked)


def _sweep(method: Scored, split: str) -> Sweep:
    probability_N, positive_N = method.probability_NL(split)[:, 0], method.predictions[split].positive_N
    return sweep(positive_N, probability_N, np.ones((1, len(positive_N))))


def _charts(page: Page) -> list[Chart]:
    roc, precision, reliable = [], [], []
    for index, method in enumerate(page.judged.methods):
        name, split = _named(method.evaluation.method), method.evaluation.split
        scored = method.predictions[split].positive_N, method.probability_NL(split)[:, 0]
        roc.append(_line(name, index, list(zip(*map(np.ndarray.tolist, roc_points(*scored)), strict=True))))
        precision.append(_line(name, index, _precision_points(method, split)))
        meant, happened, rows = reliability_points(*scored)
        points = list(zip(meant.tolist(), happened.tolist(), strict=True))
        reliable.append(_line(name, index, points, weights=rows / rows.sum()))
    charts = [
        Chart("ROC", "false alarms", "recall", roc, diagonal=True),
        Chart("Precision and recall", "recall", "precision", precision),
        Chart("Reliability (dots: rows)", "probability", "share of positive rows", reliable, diagonal=True),
    ]
    points = [point for line in page.losses.values() for point in line]
    if points:
        ends = max(step for step, _ in points), max(max(loss for _, loss in points), 1e-9)
        lines = [_line(name, index, list(points), ends) for index, (name, points) in enumerate(page.losses.items())]
        charts.insert(0, Chart("Loss", "step", "loss", lines, ends))
    return charts


def _precision_points(method: Scored, split: str) -> list[tuple[float, float]]:
    """Recall and precision from the strictest threshold on, as the steps that average precision sums."""
    curve, points = _sweep(method, split), [(0.0, 1.0)]
    for hits, alarms in zip(curve.hits_SK1[0, 1:], curve.alarms_SK1[0, 1:], strict=True):
        recall, precision = hits / max(curve.positives_S1[0, 0], 1), hits / (hits + alarms)
        points += [(points[-1][0], precision), (recall, precision)]
    return points


def _line(
    name: str,
    colour: int,
    points: Sequence[tuple[float, float]],
    ends: tuple[float, float] = (1.0, 1.0),
    weights: Floats | None = None,
) -> Line:
    """``points`` in the plot's own units, to a tenth; equal points are merged. ``weights`` give each point a dot of
    that area; a single point, which no line shows, is a dot."""
    drawn = [(round(x / ends[0] * _WIDTH, 1), round(_HEIGHT - y / ends[1] * _HEIGHT, 1)) for x, y in points]
    alone = [3.0] if len(drawn) == 1 else []
    sizes = alone if weights is None else np.round(1.5 + 9 * np.sqrt(weights), 1).tolist()
    dots = [(*point, size) for point, size in zip(drawn, sizes, strict=False)]
    return Line(name, "M" + "L".join(f"{x:g} {y:g}" for x, y in dict.fromkeys(drawn)), colour, dots)


def _by_label(page: Page) -> list[dict[str, Any]]:
    """Each label's line of the confusion matrix, its figures, and those at its own rule where it has one."""
    own = page.judged.methods[0]
    split, evaluation = own.evaluation.split, own.evaluation
    probability_NL, label_ids_N = own.probability_NL(split), own.predictions[split].label_ids_N
    lines = []
    for index, figures in enumerate(evaluation.by_label):
        rule = evaluation.rules.get(figures.label)
        fired_N, carried_N = probability_NL[:, index] >= (2.0 if rule is None else rule), label_ids_N == index
        hits = float((fired_N & carried_N).sum())
        line = {"figures": figures, "counts": evaluation.confusion[index], "rule": rule}
        at_rule = {"precision": hits / max(fired_N.sum(), 1), "recall": hits / max(carried_N.sum(), 1)}
        lines.append(line | at_rule)
    return lines


def _mistakes(page: Page) -> list[dict[str, Any]]:
    """The wrong verdicts on the rows that are reported, the surest first."""
    own = page.judged.methods[0]
    split = own.evaluation.split
    wrong_N = np.not_equal(own.verdicts_N(split), own.predictions[split].label_ids_N)
    return _listed(page, split, wrong_N)[:SHOWN]


def _doubted(page: Page) -> tuple[list[dict[str, Any]], int]:
    """Rows that read like another label's, of all splits, the surest first; and how many there are."""
    own, doubted = page.judged.methods[0], []
    for split, predictions in own.predictions.items():
        likelier_N = likelier_labels(own.probability_NL(split), predictions.label_ids_N)
        doubted += _listed(page, split, np.not_equal(likelier_N, predictions.label_ids_N))
    doubted.sort(key=lambda row: row["own"])
    return doubted[:SHOWN], len(doubted)


def _listed(page: Page, split: str, chosen_N: Flags) -> list[dict[str, Any]]:
    """The chosen rows as the page lists them, the least probable label first."""
    own, rows = page.judged.methods[0], page.judged.rows[split]
    label_ids_N, said_N = own.predictions[split].label_ids_N, own.verdicts_N(split)
    probability_NL = own.probability_NL(split)
    own_N = probability_NL[np.arange(len(label_ids_N)), label_ids_N]
    words = [method for method in page.judged.methods[1:] if method.evaluation.method == "bag_of_words"]
    words_N = words[0].verdicts_N(split) if words and split in words[0].predictions else None
    labels = page.judged.policy.labels
    return [
        {
            "id": rows[n].conversation.id,
            "where": rows[n].where,
            "split": split,
            "label": labels[label_ids_N[n]],
            "said": labels[said_N[n]],
            "positive": float(probability_NL[n, 0]),
            "own": float(own_N[n]),
            "words": None if words_N is None else labels[words_N[n]],
            "text": rows[n].conversation.excerpt(EXCERPT) if page.settings.report_texts else None,
        }
        for n in sorted(np.flatnonzero(chosen_N).tolist(), key=lambda n: own_N[n])
    ]
