"""What a run or an evaluation is judged by: a page, every row's probability, and warnings about doubtful figures."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from alora.commands.output import note, write_text
from alora.commands.training_run import TrainingRun, in_short
from alora.config.environment import describe_environment
from alora.config.schema import Recipe
from alora.errors import CheckFailed, RunError
from alora.evaluation.doubts import doubts
from alora.evaluation.page import Page, render_overview, render_page
from alora.evaluation.records import Evaluation
from alora.evaluation.report import write_evaluations
from alora.evaluation.scored import Judged, Scored, write_predictions
from alora.layout import POLICIES, REPORT, link_only
from alora.policy import Policy
from alora.reading import read_whole
from alora.training.track import read_hyperparameters
from alora.typed import typed

_SHOWN = ("artifact", "base", "adapter", "policy", "policies", "data", "prompt", "evaluation")  # of a recipe


def write_page(file: Path, judged: Judged, recipe: Recipe, training: Path) -> None:
    """Write one policy's page; ``training`` is the record of its training, which may be missing."""
    losses, trained = _training(training)
    # Without the command, which may be a resume's.
    versions = {name: value for name, value in describe_environment().items() if name != "command"}
    facts = {"Training": trained, "Settings": dict(_settings(recipe)), "Versions": versions}
    shown = {title: table for title, table in facts.items() if table}
    write_text(file, render_page(Page(judged, recipe.evaluation, losses, shown)))


def write_judgement(this: TrainingRun, policy: Policy, methods: Sequence[Scored]) -> None:
    """Every row's probability, the page, and last the figures, whose file says that the evaluation is done."""
    places = this.folder.places(policy.id)
    rows = {name: [row for row in part if policy.id in row.labels] for name, part in vars(this.splits).items()}
    judged = Judged(policy, methods, rows)
    write_predictions(places.predictions, [judged])
    write_page(places.report, judged, this.recipe, places.training)
    write_evaluations(places.evaluation, judged.evaluations)
    if len(this.policies) == 1:
        link_only(this.folder.path, policy.id)


def write_run_overview(this: TrainingRun, evaluations: Mapping[str, Sequence[Evaluation]]) -> None:
    """The page of a run of several policies: what each one's figures are, and where its page is."""
    pages = {f"{POLICIES}/{policy.id}/{REPORT}": evaluations[policy.id] for policy in this.going}
    left_out = {name: in_short(str(error)) for name, error in this.left_out.items()}
    write_text(this.folder.path / REPORT, render_overview(pages, left_out))


def say_doubts(evaluations: Sequence[Evaluation], strict: bool) -> None:
    """Print what the figures hold against the adapters.

    Raises:
        CheckFailed: they do, and ``strict`` is set.
    """
    found = doubts(evaluations)
    for finding in found:
        note(f"{finding.severity}: {finding}")
    if found and strict:
        raise CheckFailed(f"strict=true, and {len(found)} warning{'s' if len(found) > 1 else ''} above")


def peak_memory() -> int:
    """Bytes that this process has held at once: on the GPU where there is one, else in all."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _training(file: Path) -> tuple[dict[str, Sequence[tuple[float, float]]], dict[str, object]]:
    """Losses by step and facts from ``training.json``; nothing where there is none that can be read."""
    try:
        record = json.loads(read_whole(file).decode())
        losses = typed(Mapping[str, tuple[tuple[float, float], ...]], record["losses"], "losses")
        seconds = [entry["train_runtime"] for entry in record["history"] if "train_runtime" in entry]
        facts: dict[str, object] = {"time": f"{float(seconds[-1]):.0f} s"} if seconds else {}
        facts |= {"peak memory": f"{record['peak_bytes'] / 2**30:.2f} GiB", **read_hyperparameters(file)}
    except (RunError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}, {}
    return {name: points for name, points in losses.items() if points}, facts


def _settings(recipe: Recipe) -> Iterator[tuple[str, object]]:
    """The settings that decide the figures, those that are set, by their names on the command line."""

    def leaves(value: Any, name: str) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from leaves(inner, f"{name}.{key}")
        elif value not in (None, [], ""):
            yield name, value

    values = asdict(recipe)
    for name in _SHOWN:
        yield from leaves(values[name], name)
