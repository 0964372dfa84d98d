"""One unit of a comparison: an arm over all policies, from rows to scores."""

from __future__ import annotations

from pathlib import Path

from alora.comparison.scores import Scores, labelled_for, row_scores
from alora.comparison.task import TRAINED, Unit, Workbench
from alora.errors import AloraError, ConfigError


def run_unit(bench: Workbench, unit: Unit, home: Path) -> tuple[dict[str, Scores], dict[str, str]]:
    """Scores per policy, and per policy without any the reason. ``home`` is the unit's own folder.

    Raises:
        AloraError: the arm as a whole cannot run.
    """
    failed: dict[str, str] = {}
    if unit.arm in TRAINED:
        from alora.comparison.adapters import train_and_score

        found = train_and_score(bench, unit, home)
    elif unit.arm == "prompt":
        from alora.comparison.prompted import score_prompted

        found = score_prompted(bench, unit)
    elif unit.arm == "probe":
        from alora.comparison.probe import fit_and_score

        found = fit_and_score(bench, unit)
    elif unit.arm == "judge":
        from alora.comparison.judge import ask_and_score

        found = ask_and_score(bench.task, unit, home)
    elif unit.arm == "bag_of_words":
        found, failed = _bags(bench, unit)
    else:
        raise ConfigError(f"compare.arms holds {unit.arm!r}, which is no arm")
    missing = [policy.id for policy in bench.task.policies if policy.id not in found and policy.id not in failed]
    return found, failed | dict.fromkeys(missing, "its loss was not finite; lower the arm's learning rate")


def _bags(bench: Workbench, unit: Unit) -> tuple[dict[str, Scores], dict[str, str]]:
    from alora.evaluation.bag_of_words import fit_bag_of_words

    splits, found, failed = bench.task.splits, {}, {}
    for policy in bench.task.policies:
        rows = {name: labelled_for(policy, getattr(splits, name)) for name in ("train", "validation", "test")}
        try:
            bag = fit_bag_of_words(policy, rows["train"])
        except AloraError as error:
            failed[policy.id] = str(error)
            continue
        parts = {name: row_scores(bag.predict(rows[name]), rows[name]) for name in ("validation", "test")}
        facts = {"training_rows": len(rows["train"])}
        found[policy.id] = Scores(unit.arm, policy.id, None, None, **parts, facts=facts)
    return found, failed
