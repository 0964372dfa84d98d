"""What a run or an evaluation is judged by: tables, a page, every row's probability, and doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.atomic import write_text
from alora.config.environment import describe_environment
from alora.config.schema import EvaluationSettings
from alora.data.findings import WARNING, Finding
from alora.errors import CheckFailed, RunError
from alora.evaluation.doubts import doubts
from alora.evaluation.records import Evaluation
from alora.evaluation.report_html import Page, render_overview, render_page
from alora.evaluation.tables import Judged, Scored, write_evaluations, write_predictions
from alora.policy import Policy
from alora.text import leaves, note
from alora.training.layout import POLICIES, REPORT, link_only
from alora.training.schedule import unfinished
from alora.training.standings import read_training

if TYPE_CHECKING:
    from alora.training.training_run import TrainingRun

_SHOWN = ("base", "adapter", "policy", "policies", "data", "prompt", "evaluation")  # of a run's settings


def write_page(
    file: Path, judged: Judged, evaluation: EvaluationSettings, settings: Mapping[str, Any], training: Path
) -> None:
    """Write one policy's page, with the settings that its figures depend on; its training may have no record."""
    losses, trained, text = _training(training)
    # Without the command, which may be a resume's.
    versions = {name: value for name, value in describe_environment().items() if name != "command"}
    facts = {"Training": trained, "Settings": _set(settings), "Versions": versions}
    shown = {title: table for title, table in facts.items() if table}
    warnings = [Finding(WARNING, "STILL_IMPROVING", judged.policy.id, f"it {text}")] if text else []
    write_text(file, render_page(Page(judged, evaluation, losses, shown, warnings)))


def write_judgement(this: TrainingRun, policy: Policy, methods: Sequence[Scored]) -> None:
    """Every row's probability, the page, and last the figures, whose file says that the evaluation is done."""
    paths = this.folder.paths(policy.id)
    rows = {"test": [row for row in this.splits.test if policy.id in row.labels]}
    rows |= {"sample": [row for row in this.splits.sample if policy.id in row.labels]}
    rows |= dict.fromkeys(("validation", "out_of_fold"), this.splits.calibration(policy.id))
    judged = Judged(policy, methods, rows)
    write_predictions(paths.predictions, [judged])
    settings = {name: value for name, value in asdict(this.recipe).items() if name in _SHOWN}
    write_page(paths.report, judged, this.recipe.evaluation, settings, paths.training)
    write_evaluations(paths.evaluation, judged.evaluations)
    if len(this.policies) == 1:
        link_only(this.folder.path, policy.id)


def write_run_overview(this: TrainingRun, evaluations: Mapping[str, Sequence[Evaluation]]) -> None:
    """The page of a run of several policies: what each one's figures are, and where its page is."""
    pages = {f"{POLICIES}/{policy.id}/{REPORT}": evaluations[policy.id] for policy in this.going}
    left_out = {name: in_short(str(error)) for name, error in this.left_out.items()}
    write_text(this.folder.path / REPORT, render_overview(pages, left_out))


def in_short(reason: str) -> str:
    """Of a reason, the first line, and the first finding where there are several."""
    return ": ".join(line.strip().removesuffix(":") for line in reason.splitlines()[:2])


def note_doubts(evaluations: Sequence[Evaluation], strict: bool) -> None:
    """Print what the figures hold against the adapters."""
    found = doubts(evaluations)
    for finding in found:
        note(f"{finding.severity}: {finding}")
    if found and strict:
        raise CheckFailed(f"strict=true, and {len(found)} warning{'s' if len(found) > 1 else ''} above")


def _training(file: Path) -> tuple[dict[str, Sequence[tuple[float, float]]], dict[str, object], str | None]:
    """Losses by step, facts, and what is to be said of its end, from ``training.json``; nothing where there is none
    that can be read."""
    try:
        record = read_training(file)
    except RunError:
        return {}, {}, None
    seconds = [entry["train_runtime"] for entry in record.history if "train_runtime" in entry]
    facts: dict[str, object] = {"time": f"{seconds[-1]:.0f} s"} if seconds else {}
    facts |= {"peak memory": f"{record.peak_bytes / 2**30:.2f} GiB", **record.hyperparameters}
    text = unfinished(record.losses.get("validation", ()), record.settings)
    return {name: points for name, points in record.losses.items() if points}, facts, text


def _set(settings: Mapping[str, Any]) -> dict[str, object]:
    """The settings that are set, by their names on the command line."""
    return {name: value for name, value in leaves(settings) if value not in (None, [], "", {})}
