"""One unit of a comparison: an arm over all policies, from rows to scores."""

from __future__ import annotations

from pathlib import Path

from alora.comparison.adapters import train_and_score
from alora.comparison.judge import ask_and_score
from alora.comparison.probe import fit_and_score
from alora.comparison.prompted import score_prompted
from alora.comparison.scores import Scores, labelled_for, row_scores
from alora.comparison.task import TRAINED, Unit, Workbench
from alora.errors import AloraError
from alora.evaluation.bag_of_words import fit_bag_of_words


def run_unit(bench: Workbench, unit: Unit, home: Path) -> tuple[dict[str, Scores], dict[str, str]]:
    """Scores per policy, and per policy without any the reason. ``home`` is the unit's own folder.

    Raises:
        AloraError: the arm as a whole cannot run.
    """
    failed: dict[str, str] = {}
    if unit.arm in TRAINED:
        found = train_and_score(bench, unit, home)
    elif unit.arm == "prompt":
        found = score_prompted(bench, unit)
    elif unit.arm == "probe":
        found = fit_and_score(bench, unit)
    elif unit.arm == "judge":
        found = ask_and_score(bench.task, unit, home)
    else:
        found, failed = _bags(bench, unit)
    missing = [policy.id for policy in bench.task.policies if policy.id not in found and policy.id not in failed]
    return found, failed | dict.fromkeys(missing, "its loss was not finite; lower the arm's learning rate")


def _bags(bench: Workbench, unit: Unit) -> tuple[dict[str, Scores], dict[str, str]]:
    splits, found, failed = bench.task.splits, {}, {}
    for policy in bench.task.policies:
        try:
            bag = fit_bag_of_words(policy, splits.train)
        except AloraError as error:
            failed[policy.id] = str(error)
            continue
        parts = [row_scores(bag.predict(rows), rows) for rows in (splits.validation, splits.test)]
        facts = {"training_rows": len(labelled_for(policy, splits.train))}
        found[policy.id] = Scores(unit.arm, policy.id, None, None, *parts, facts=facts)
    return found, failed
