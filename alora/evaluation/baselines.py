"""Policies' adapters and what they must beat on the same rows: the base with the rule in its prompt, a bag of words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from alora.adapter.folder import AdapterWeights, silent_adapter
from alora.base.load import LoadedBase
from alora.config.schema import EvaluationSettings
from alora.data.splits import Splits, known_rows
from alora.errors import AloraError
from alora.evaluation.bag_of_words import fit_bag_of_words, out_of_fold_words
from alora.evaluation.calibration import all_probabilities, fit_operating_point, fit_rules
from alora.evaluation.paired import lead_in_worth, paired_auroc
from alora.evaluation.predict import MAX_TOKENS, Predictions, predict_parts
from alora.evaluation.records import Evaluation, Lead
from alora.evaluation.scored import Scored
from alora.evaluation.tables import evaluate
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
) -> tuple[dict[str, list[Scored]], dict[str, AloraError]]:
    """Evaluate every policy on the test rows, calibrated on the rows that were held out; without test rows on those.

    The first evaluation of a policy is its adapter's. A policy without figures is in the second mapping, with its
    error.

    Args:
        out_of_fold: of each policy in folds, what the folds' adapters answered to their rows.
    """
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
    scored: dict[str, list[Scored]] = {}
    failed: dict[str, AloraError] = {}
    for index, (policy, adapter) in enumerate(zip(policies, adapters, strict=True)):
        kind = "alora" if adapter.spec.activated else "lora"
        try:
            own = out_of_fold.get(policy.id)
            asked = {kind: answers[index], "prompt": answers[len(policies) + index]}
            methods = _by_split(policy, splits, asked, own, seed)
            judged = [
                calibrated(
                    method,
                    predicted,
                    settings,
                    adapter if method == kind else None,
                    seed,
                    {kind: known, "bag_of_words": taught}.get(method, Counter())[policy.id],
                )
                for method, predicted in methods.items()
            ]
            scored[policy.id] = with_leads(judged, settings, seed)
        except AloraError as error:
            failed[policy.id] = error
    return scored, failed


def _by_split(
    policy: Policy,
    splits: Splits,
    asked: Mapping[str, Sequence[Predictions]],
    out_of_fold: Predictions | None,
    seed: int,
) -> dict[str, dict[str, Predictions]]:
    """Each method's predictions, first on the rows that it is calibrated by, last on those that it is measured on."""
    bag, known = fit_bag_of_words(policy, splits.train, seed), splits.calibration(policy.id)
    methods: dict[str, dict[str, Predictions]] = {}
    for method, (held, tested) in asked.items():
        if out_of_fold is None:
            first = {"validation": held}
        elif method == "prompt":
            first = {"sample" if splits.test else "out_of_fold": held}
        else:
            first = {"out_of_fold": out_of_fold}
        methods[method] = first | ({"test": tested} if splits.test else {})
    words = {"validation": bag.predict(known)}
    if out_of_fold is not None:
        words = {"out_of_fold": out_of_fold_words(policy, known, seed)}
    methods["bag_of_words"] = words | ({"test": bag.predict(splits.test)} if splits.test else {})
    return methods


def with_leads(methods: Sequence[Scored], settings: EvaluationSettings, seed: int = 0) -> list[Scored]:
    """``methods``, where each but the first, the adapter, says how far the adapter is above it on the same rows."""
    own, *others = methods
    return [own, *(replace(other, evaluation=_with_leads(own, other, settings.bootstrap, seed)) for other in others)]


def _with_leads(own: Scored, other: Scored, resamples: int, seed: int) -> Evaluation:
    split, point = own.evaluation.split, own.evaluation.operating_point
    positive_N = own.predictions[split].positive_N
    if positive_N.all() or not positive_N.any():
        return other.evaluation
    mine_N, theirs_N = (one.probability_NL(split)[:, 0] for one in (own, other))
    ranked = paired_auroc(positive_N, mine_N, theirs_N, resamples, seed)
    leads = {"auroc": Lead(ranked.value, *(None if np.isnan(end) else end for end in (ranked.low, ranked.high)))}
    if point.target in ("f1", "cost"):
        flags = mine_N >= point.threshold, theirs_N >= other.evaluation.operating_point.threshold
        leads[point.target] = lead_in_worth(positive_N, *flags, point.costs, resamples, seed)
    return replace(other.evaluation, leads=leads)


def calibrated(
    method: str,
    predicted: dict[str, Predictions],
    settings: EvaluationSettings,
    adapter: AdapterWeights | None,
    seed: int,
    trained_on: int,
) -> Scored:
    """Figures of ``method`` on the last part of its predictions, at an operating point that is fitted on the first.

    Raises:
        ConfigError: see :func:`alora.evaluation.calibration.choose_threshold`.
        DataError: no validation rows, or of one class only.
    """
    known, (split, asked) = next(iter(predicted.values())), list(predicted.items())[-1]
    point = fit_operating_point(known.logits_NL, known.label_ids_N, settings, seed)
    known_NL = all_probabilities(known.logits_NL, point.temperature, point.bias)
    rules = fit_rules(known_NL, known.label_ids_N, known.policy.labels, settings)
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
