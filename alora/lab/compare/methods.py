"""One run of a comparison: a method over all policies, from rows to scores.

The methods that train (aLoRA, on all rows or without the doubtful ones, and standard LoRA) see the same rows in the
same batches and order, with the same initial A, and stop by the same rule; only where the adapter starts differs, and
the learning rate where ``compare.lora_learning_rate`` or ``compare.alora_learning_rate`` is given.

The judge is another model (:mod:`alora.llm.judge`). A row without an answer after all tries has no score: figures cover
the rows that have one, and their share is reported. Where the endpoint failed on a row, rather than refused it, the
method stays open and the next call asks again.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from alora.adapter.folder import AdapterSpec, AdapterWeights, new_adapter, save_adapter, silent_adapter
from alora.base.limits import too_long_prompts
from alora.config.schema import JudgeSettings
from alora.data.conversation import LabelledConversation
from alora.data.splits import require_labels
from alora.errors import ConfigError, DataError, LeftOut
from alora.evaluation.bag_of_words import fit_bag_of_words, without_doubtful
from alora.evaluation.metrics import Floats
from alora.evaluation.predict import Predictions, out_of_fold_predictions, predict_parts
from alora.lab.compare.compare_report import ASK_AGAIN, JUDGE, judge_digest
from alora.lab.compare.encoder import fine_tune_and_score, fit_and_score
from alora.lab.compare.task import (
    TRAINED,
    MethodRun,
    Rows,
    RowScores,
    Scores,
    Task,
    Workbench,
    calibration_rows,
    held_out_answers,
    labelled_for,
    scores_of,
)
from alora.llm.client import JudgeUsage, NoAnswer
from alora.llm.judge import SURE, ask, require_settings
from alora.llm.judge_prompt import Answer
from alora.policy import Policy
from alora.prefix.scorer import Scorer
from alora.prompt.render import Renderer
from alora.training.examples import examples
from alora.training.layout import remove_checkpoints
from alora.training.loop import fit
from alora.training.schedule import loss_curves, still_improving


def run_method(bench: Workbench, run: MethodRun, home: Path) -> tuple[dict[str, Scores], dict[str, str]]:
    """Scores per policy, and per policy without any the reason. ``home`` is the run's own folder."""
    by_id, failed = bench.task.by_id, LeftOut()
    if run.arm in TRAINED:
        scores = _trained(bench, run, home, failed)
    elif run.arm == "prompt":
        scores = _prompted(bench, run, failed)
    elif run.arm == "judge":
        scores = ask_and_score(bench.task, run, home)
    else:
        one = {"bag_of_words": _bag, "encoder": fine_tune_and_score}.get(run.arm, fit_and_score)
        scores = failed.each(by_id, lambda name: one(bench, run, by_id[name]))
    reasons = {name: str(error) for name, error in failed.items()}
    missing = [name for name in by_id if name not in scores and name not in failed]
    return scores, reasons | dict.fromkeys(missing, "its loss was not finite; lower the method's learning rate")


def _trained(bench: Workbench, run: MethodRun, home: Path, failed: LeftOut) -> dict[str, Scores]:
    """Train and score every policy's adapter, which is kept below ``home``; one that diverged is not in the result."""
    task, activated = bench.task, run.arm != "lora"
    if run.arm == "alora_cleaned":
        task, left_out = _cleaned(task)
        failed.update(left_out)
        if not task.policies:
            return {}
        bench = replace(bench, task=task)
    recipe, splits = task.recipe, task.splits
    rate = recipe.compare.alora_learning_rate if activated else recipe.compare.lora_learning_rate
    settings = replace(recipe.training, seed=run.seed or 0, learning_rate=rate or recipe.training.learning_rate)
    started = time.process_time()
    parts = (splits.train, splits.validation)
    rows, held_out = (examples(part, task.policies, bench.renderer, activated) for part in parts)
    fresh = [new_adapter(_spec(bench, run, policy), bench.base.model, settings.seed) for policy in task.policies]
    fitted = fit(bench.base, fresh, rows, held_out, settings, home / "checkpoints", store=bench.store)
    trained = time.process_time()
    going = [index for index, standing in enumerate(fitted.standings) if standing.dropped is None]
    adapters = [fitted.adapters[index] for index in going]
    answers = _ask(bench, bench.renderer, adapters, [task.policies[index] for index in going], run.arm,
                   splits.validation)  # fmt: skip
    facts = {
        "learning_rate": fitted.settings.learning_rate,
        "epochs": fitted.settings.epochs,
        "steps": fitted.steps,
        "training_rows": sum(bool(row.targets) for row in rows),
        "cpu_seconds_training_all_policies": round(trained - started, 1),
        "cpu_seconds_scoring_all_policies": round(time.process_time() - trained, 1),
    }
    scores = {}
    for index, adapter, answered in zip(going, adapters, answers, strict=True):
        policy, standing = task.policies[index], fitted.standings[index]
        save_adapter(adapter, home / "adapters" / policy.id, bench.base.source)
        own = {"best_step": standing.best_step, "best_validation_loss": standing.best_loss, "digest": adapter.digest}
        curves = loss_curves(fitted.history, index, len(fitted.standings))
        own["still_improving"] = still_improving(curves["validation"]) is not None
        if (logits := fitted.out_of_fold[index]) is not None:
            answered = [out_of_fold_predictions(policy, splits.calibration(policy.id), logits), answered[1]]
        scores[policy.id] = scores_of(run, answered, splits, facts | own)
    remove_checkpoints(home / "checkpoints")
    return scores


def _cleaned(task: Task) -> tuple[Task, LeftOut]:
    """``task`` without the labels that look wrong, and without the policies for which that cannot be said."""
    by_id = task.by_id
    rows, left_out = without_doubtful(task.policies, task.splits.train)
    splits = replace(task.splits, train=tuple(rows))
    few = LeftOut()
    few.each([name for name in by_id if name not in left_out], lambda name: require_labels(splits, by_id[name]))
    left_out.update({name: DataError(f"without its doubtful labels, {error}") for name, error in few.items()})
    going = tuple(policy for policy in task.policies if policy.id not in left_out)
    return replace(task, policies=going, splits=splits), left_out


def _spec(bench: Workbench, run: MethodRun, policy: Policy) -> AdapterSpec:
    invocation_ids = bench.renderer.suffix(policy).invocation_ids if run.arm != "lora" else None
    return AdapterSpec.of(bench.task.recipe.adapter, invocation_ids, run.rank)


def _prompted(bench: Workbench, run: MethodRun, failed: LeftOut) -> dict[str, Scores]:
    """The base alone reads conversation, title and the whole rule, whatever ``prompt.instruction`` says. Temperature
    and threshold are fitted on validation rows afterwards, as for every method; a preference for the wrong label stays
    wrong."""
    renderer, splits, targets = bench.renderer.with_rule(), bench.task.splits, bench.task.recipe.adapter.targets
    asked = {policy.id: renderer.suffix(policy) for policy in bench.task.policies}
    crowded = too_long_prompts(bench.base.model, renderer, [*splits.sample, *splits.test], asked)
    failed.update({name: ConfigError(f"with its rule, {text}") for name, text in crowded.items()})
    policies = [policy for policy in bench.task.policies if policy.id not in failed]
    if not policies:
        return {}
    suffixes = [asked[policy.id] for policy in policies]
    silent = [silent_adapter(bench.base.model, targets, suffix.invocation_ids) for suffix in suffixes]
    started = time.process_time()
    answers = _ask(bench, renderer, silent, policies, "rule in the prompt", splits.sample)
    facts = {"cpu_seconds_scoring_all_policies": round(time.process_time() - started, 1)}
    return {
        policy.id: scores_of(run, answered, splits, facts | {"suffix_tokens": len(suffix.token_ids)})
        for policy, suffix, answered in zip(policies, suffixes, answers, strict=True)
    }


def _bag(bench: Workbench, run: MethodRun, policy: Policy) -> Scores:
    def fit(rows: Rows) -> Callable[[Rows], Floats]:
        bag = fit_bag_of_words(policy, rows)
        return lambda asked: bag.predict(asked).logits_NL

    splits = bench.task.splits
    facts = {"training_rows": len(labelled_for(policy, splits.train))}
    return scores_of(run, held_out_answers(policy, splits, fit), splits, facts)


def _ask(
    bench: Workbench,
    renderer: Renderer,
    adapters: Sequence[AdapterWeights],
    policies: Sequence[Policy],
    name: str,
    known: Sequence[LabelledConversation],
) -> list[list[Predictions]]:
    """Per policy its adapter's predictions on the rows to calibrate by, and on the test rows."""
    parts = {"validation": known, "test": bench.task.splits.test}
    suffixes = [renderer.suffix(policy) for policy in policies]
    with Scorer(bench.base, adapters, store=bench.store) as scorer:
        return predict_parts(scorer, renderer, policies, suffixes, parts, name, bench.task.recipe.scoring.max_tokens)


def ask_and_score(task: Task, run: MethodRun, home: Path) -> dict[str, Scores]:
    """Ask the judge about every validation and test row of every policy; answers are kept below ``home``."""
    settings = task.recipe.judge
    require_settings(settings)
    scores = {}
    for policy in task.policies:
        known = calibration_rows(task.splits, policy, run.arm)
        rows = {"validation": known, "test": labelled_for(policy, task.splits.test)}
        given, usage, silent = ask(policy, rows, home / "answers" / f"{policy.id}.jsonl", settings)
        parts = {name: _scores(policy, part, given[name]) for name, part in rows.items()}
        facts = _facts(settings, usage, silent)
        # Where nothing at all was answered, something is to be mended before these rows can be.
        facts[ASK_AGAIN] = silent[NoAnswer.FAILED] if any(given.values()) else silent.total()
        scores[policy.id] = Scores(run.arm, policy.id, None, None, parts["validation"], parts["test"], facts)
    return scores


def _scores(policy: Policy, rows: Sequence[LabelledConversation], given: Mapping[int, Answer]) -> RowScores:
    """Scores of the rows that have an answer, in the rows' order."""
    kept, labels = sorted(given), len(policy.labels)
    return RowScores.of(
        ids=tuple(rows[index].conversation.id for index in kept),
        label_ids_N=np.array([policy.label_index(rows[index].labels[policy.id]) for index in kept], dtype=np.int64),
        logits_NL=np.array([logits(given[index], labels) for index in kept], dtype=np.float64).reshape(-1, labels),
        asked=len(rows),
    )


def logits(answer: Answer, labels: int) -> list[float]:
    """Log-probabilities: the confidence on the label given, the rest shared by the others, none of them above it."""
    sure = SURE if answer.confidence is None else min(SURE, max(1 / labels, answer.confidence))
    rest = min(sure, (1 - sure) / (labels - 1))
    return np.log([sure if index == answer.label_id else rest for index in range(labels)]).tolist()


def _facts(settings: JudgeSettings, usage: JudgeUsage, silent: Counter[NoAnswer]) -> dict[str, Any]:
    refused = silent[NoAnswer.REFUSED] + silent[NoAnswer.FILTERED]
    facts: dict[str, Any] = {"model": settings.model, JUDGE: judge_digest(settings)}
    facts |= {**asdict(usage), "refused_rows": refused}
    return facts | ({} if settings.input_price is None else {"cost": round(usage.cost(settings), 6)})
