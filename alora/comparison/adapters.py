"""The arms that train: aLoRA, on all rows or without the doubtful ones, and standard LoRA; all policies in one run.

Both see the same rows in the same batches and order, with the same initial A, and stop by the same rule; only where
the adapter starts differs, and the learning rate where ``compare.lora_learning_rate`` or its fellow is given.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from alora.adapter.folder import AdapterSpec, new_adapter, save_adapter
from alora.comparison.scores import Scores, row_scores
from alora.comparison.task import Unit, Workbench
from alora.evaluation.noise import without_doubtful
from alora.evaluation.predict import predict
from alora.policy import Policy
from alora.prefix.scorer import Scorer
from alora.training import examples, fit
from alora.training.run_folder import remove_checkpoints
from alora.training.schedule import still_improving


def train_and_score(bench: Workbench, unit: Unit, home: Path) -> dict[str, Scores]:
    """Train every policy's adapter and score its validation and test rows; the adapters are kept below ``home``.

    A policy whose training diverged is not in the result.

    Raises:
        TrainingError: see :func:`alora.training.fit`.
    """
    task, activated = bench.task, unit.arm != "lora"
    recipe, splits = task.recipe, task.splits
    rate = recipe.compare.alora_learning_rate if activated else recipe.compare.lora_learning_rate
    settings = replace(recipe.training, seed=unit.seed or 0, learning_rate=rate or recipe.training.learning_rate)
    started = time.process_time()
    train = without_doubtful(task.policies, splits.train) if unit.arm == "alora_cleaned" else splits.train
    rows = [examples(part, task.policies, bench.renderer, activated) for part in (train, splits.validation)]
    fresh = [new_adapter(_spec(bench, unit, policy), bench.base.model, settings.seed) for policy in task.policies]
    checkpoints = home / "checkpoints"
    fitted = fit(bench.base, fresh, rows[0], rows[1], settings, checkpoints, store=bench.store)
    trained = time.process_time()
    going = [place for place, standing in enumerate(fitted.standings) if standing.dropped is None]
    policies = [task.policies[place] for place in going]
    adapters = [fitted.adapters[place] for place in going]
    with Scorer(bench.base, adapters, store=bench.store) as scorer:
        suffixes = [bench.renderer.suffix(policy) for policy in policies]
        answers = [
            predict(scorer, bench.renderer, policies, suffixes, part, f"{unit.arm} on {name}")
            for name, part in (("validation", splits.validation), ("test", splits.test))
        ]
    facts = {
        "learning_rate": fitted.settings.learning_rate,
        "epochs": fitted.settings.epochs,
        "steps": fitted.steps,
        "training_rows": sum(bool(row.targets) for row in rows[0]),
        "cpu_seconds_training_all_policies": round(trained - started, 1),
        "cpu_seconds_scoring_all_policies": round(time.process_time() - trained, 1),
    }
    found = {}
    for place, policy, adapter, known, asked in zip(going, policies, adapters, *answers, strict=True):
        save_adapter(adapter, home / "adapters" / policy.id, bench.base.source)
        standing = fitted.standings[place]
        improving = still_improving(fitted.history, place, len(fitted.standings)) is not None
        own = {"best_step": standing.best_step, "best_validation_loss": standing.best_loss, "digest": adapter.digest}
        own["still_improving"] = improving
        found[policy.id] = Scores(
            arm=unit.arm,
            policy=policy.id,
            seed=unit.seed,
            rank=unit.rank,
            validation=row_scores(known, splits.validation),
            test=row_scores(asked, splits.test),
            facts=facts | own,
        )
    remove_checkpoints(checkpoints)
    return found


def _spec(bench: Workbench, unit: Unit, policy: Policy) -> AdapterSpec:
    invocation_ids = bench.renderer.suffix(policy).invocation_ids if unit.arm != "lora" else None
    return AdapterSpec.of(bench.task.recipe.adapter, invocation_ids, unit.rank)
