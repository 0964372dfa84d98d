"""The model card (``card.md.j2``): what the adapter decides, how well, on which base, and how to ask it.

Everything in it comes from the manifest, which holds no path of the machine that made it.
"""

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from alora.adapter.folder import AdapterSpec
from alora.bundle.manifest import Manifest
from alora.evaluation.doubts import doubts
from alora.evaluation.html import in_markdown
from alora.evaluation.tables import describe_operating_point, figure_rows

_HUB_METRICS = {"accuracy": "accuracy", "f1": "f1", "precision": "precision", "recall": "recall", "auroc": "roc_auc"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def model_card(manifest: Manifest, spec: AdapterSpec, without_controls: bool = False) -> str:
    """``without_controls`` is the certificate's."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"inline": in_markdown, "line": _line, "code": _code, "json": json.dumps}
    shape = {"rank": str(spec.rank), "alpha": f"{spec.alpha:g}", "targets": ", ".join(spec.targets)}
    columns = [figure_rows(evaluation.metrics) for evaluation in manifest.evaluations]
    return templates.get_template("card.md.j2").render(
        vars(manifest),
        on_hub=not manifest.base.local and _HUB_ID.fullmatch(manifest.base.source),
        result=_hub_result(manifest),
        first=next(iter(manifest.evaluations), None),
        findings=doubts(manifest.evaluations),
        figures=[(rows[0][0], [cell for _, cell in rows]) for rows in zip(*columns, strict=True)],
        operating_point_in_words=describe_operating_point(manifest.operating_point),
        without_controls=without_controls,
        training={**shape, **manifest.card.training},
    )


def _hub_result(manifest: Manifest) -> dict[str, Any] | None:
    """The figures in the hub's form, unless the operating point or the base has changed since."""
    if not manifest.evaluations or manifest.moved is not None or manifest.operating_point.dtype is not None:
        return None
    first = manifest.evaluations[0]
    values = {name: first.metrics.value(figure) for figure, name in _HUB_METRICS.items()}
    return {
        "task": {"type": "text-classification"},
        "dataset": {"type": "private", "name": f"{first.split} rows", "split": first.split},
        "metrics": [{"type": name, "value": round(value, 4)} for name, value in values.items() if value is not None],
    }


def _line(text: str) -> str:
    """User text as a line of its own, where a list, a rule or the mark of a heading could begin."""
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", in_markdown(text))


def _code(text: str) -> str:
    """User text as a code span; the JSON form where a code span could not hold it."""
    if re.search(r"[`|\s]", text) or not text.isprintable() or not text:
        return "`" + json.dumps(text).replace("`", "\\u0060").replace("|", "\\u007c") + "`"
    return f"`{text}`"
