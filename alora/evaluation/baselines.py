"""Policies' adapters and what they must beat on the same rows: the base with the rule in its prompt, a bag of words."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from alora.adapter.folder import AdapterWeights, silent_adapter
from alora.base.load import LoadedBase
from alora.config.schema import EvaluationSettings
from alora.data.splits import Splits, known_rows
from alora.errors import LeftOut
from alora.evaluation.bag_of_words import fit_bag_of_words, out_of_fold_words
from alora.evaluation.calibration import fit_operating_point, fit_rules
from alora.evaluation.paired import lead_in_worth, paired_auroc
from alora.evaluation.predict import MAX_TOKENS, Predictions, predict_parts
from alora.evaluation.records import Estimate
from alora.evaluation.tables import Scored, evaluate
from alora.policy import Policy
from alora.prefix.scorer import Scorer
from alora.prompt.render import Renderer


def compare_with_baselines(
    base: LoadedBase,
    renderer: Renderer,
    policies: Sequence[Policy],
    adapters: Sequence[AdapterWeights],
    splits: Splits,
    out_of_fold: Mapping[str, Predictions],
    settings: EvaluationSettings,
    seed: int,
    max_tokens: int = MAX_TOKENS,
) -> tuple[dict[str, list[Scored]], LeftOut]:
    """Evaluate every policy on the test rows, calibrated on the rows that were held out; without test rows on those.
    The first evaluation of a policy is its adapter's. A policy without figures is in the second mapping, with its
    error. ``out_of_fold``: of each policy in folds, what the folds' adapters answered to their rows."""
    # Without test rows all methods are measured on all rows; else a sample calibrates a method that learns from none.
    every = (*(row for row in splits.train if row.folds), *splits.validation)
    parts = {"held out": splits.sample if splits.test else every, "test": splits.test}
    # Both kinds in one bank share each row's prefix.
    rule_renderer = renderer.with_rule()
    rules = [rule_renderer.suffix(policy) for policy in policies]
    silent = [
        silent_adapter(base.model, adapter.spec.targets, rule.invocation_ids)
        for adapter, rule in zip(adapters, rules, strict=True)
    ]
    suffixes = [*map(renderer.suffix, policies), *rules]
    with Scorer(base, [*adapters, *silent]) as scorer:
        answers = predict_parts(scorer, renderer, [*policies, *policies], suffixes, parts, "evaluating", max_tokens)
    taught = known_rows(splits.test or splits.validation, splits.train)
    known = known_rows(splits.test, [*splits.train, *splits.validation]) if splits.test else taught

    def judged(number: int) -> list[Scored]:
        policy, adapter, folded = policies[number], adapters[number], out_of_fold.get(policies[number].id)
        (own, tested), (prompted, prompt_tested) = answers[number], answers[len(policies) + number]
        bag, rows = fit_bag_of_words(policy, splits.train, seed), splits.calibration(policy.id)
        kind, held = "alora" if adapter.spec.activated else "lora", "validation" if folded is None else "out_of_fold"
        words = bag.predict(rows) if folded is None else out_of_fold_words(policy, rows, seed)
        sampled = held if folded is None or not splits.test else "sample"
        methods = [
            (kind, held, folded or own, tested, adapter, known[policy.id]),
            ("prompt", sampled, prompted, prompt_tested, None, 0),
            ("bag_of_words", held, words, bag.predict(splits.test), None, taught[policy.id]),
        ]
        scored = []
        for name, part, first, last, own_adapter, trained_on in methods:
            of_method = {part: first} | ({"test": last} if splits.test else {})
            scored.append(calibrated(name, of_method, settings, own_adapter, seed, trained_on))
        return with_leads(scored, settings, seed)

    failed, numbers = LeftOut(), {policy.id: number for number, policy in enumerate(policies)}
    return failed.each(numbers, lambda name: judged(numbers[name])), failed


def with_leads(methods: Sequence[Scored], settings: EvaluationSettings, seed: int = 0) -> list[Scored]:
    """``methods``, where each but the first, the adapter, says how far the adapter is above it on the same rows."""
    own, split = methods[0], methods[0].evaluation.split
    positive_N, point = own.predictions[split].positive_N, own.evaluation.operating_point
    if positive_N.all() or not positive_N.any():
        return list(methods)
    mine_N, led = own.probability_NL(split)[:, 0], [own]
    for other in methods[1:]:
        theirs_N = other.probability_NL(split)[:, 0]
        ranked = paired_auroc(positive_N, mine_N, theirs_N, settings.bootstrap, seed)
        leads = {
            "auroc": Estimate(ranked.value, *(None if np.isnan(end) else end for end in (ranked.low, ranked.high)))
        }
        if point.target in ("f1", "cost"):
            flags = mine_N >= point.threshold, theirs_N >= other.evaluation.operating_point.threshold
            leads[point.target] = lead_in_worth(positive_N, *flags, point.costs, settings.bootstrap, seed)
        led.append(replace(other, evaluation=replace(other.evaluation, leads=leads)))
    return led


def calibrated(
    method: str,
    predicted: dict[str, Predictions],
    settings: EvaluationSettings,
    adapter: AdapterWeights | None,
    seed: int,
    trained_on: int,
) -> Scored:
    """Figures of ``method`` on the last part of its predictions, at an operating point that is fitted on the first."""
    known, (split, asked) = next(iter(predicted.values())), list(predicted.items())[-1]
    point = fit_operating_point(known.logits_NL, known.label_ids_N, settings, seed)
    rules = fit_rules(known.probability_NL(point), known.label_ids_N, known.policy.labels, settings)
    digest = None if adapter is None else adapter.digest
    evaluation = evaluate(
        asked,
        point,
        settings,
        method=method,
        split=split,
        adapter_digest=digest,
        seed=seed,
        rules=rules,
        trained_on=trained_on,
    )
    return Scored(evaluation, predicted)
