"""Policies' adapters and what they must beat on the same rows: the base with the rule in its prompt, a bag of words."""

from collections import Counter
from collections.abc import Sequence

from alora.adapter.folder import AdapterWeights, silent_adapter
from alora.base.load import LoadedBase
from alora.config.schema import EvaluationSettings
from alora.data.splits import Splits, known_rows
from alora.errors import AloraError
from alora.evaluation.bag_of_words import fit_bag_of_words
from alora.evaluation.calibration import all_probabilities, fit_operating_point, fit_rules
from alora.evaluation.predict import Predictions, predict_parts
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
    settings: EvaluationSettings,
    seed: int,
) -> tuple[dict[str, list[Scored]], dict[str, AloraError]]:
    """Evaluate every policy on the test rows (validation rows without any), calibrated on validation rows.

    The first evaluation of a policy is its adapter's. A policy without figures is in the second mapping, with its
    error.
    """
    split = "test" if splits.test else "validation"
    parts = {"validation": splits.validation, split: splits.held_out}  # one part where there are no test rows
    # Both kinds in one bank share each row's prefix.
    rule_renderer = renderer.with_rule()
    rules = [rule_renderer.suffix(policy) for policy in policies]
    silent = [
        silent_adapter(base.model, adapter.spec.targets, rule.invocation_ids)
        for adapter, rule in zip(adapters, rules, strict=True)
    ]
    suffixes = [*map(renderer.suffix, policies), *rules]
    with Scorer(base, [*adapters, *silent]) as scorer:
        answers = predict_parts(scorer, renderer, [*policies, *policies], suffixes, parts, "evaluating")
    taught = known_rows(splits.held_out, splits.train)
    known = known_rows(splits.test, [*splits.train, *splits.validation]) if splits.test else taught
    scored: dict[str, list[Scored]] = {}
    failed: dict[str, AloraError] = {}
    for index, (policy, adapter) in enumerate(zip(policies, adapters, strict=True)):
        kind = "alora" if adapter.spec.activated else "lora"
        try:
            bag = fit_bag_of_words(policy, splits.train, seed)
            methods = {
                kind: answers[index],
                "prompt": answers[len(policies) + index],
                "bag_of_words": [bag.predict(rows) for rows in parts.values()],
            }
            scored[policy.id] = [
                calibrated(
                    method,
                    dict(zip(parts, predicted, strict=True)),
                    settings,
                    adapter if method == kind else None,
                    seed,
                    {kind: known, "bag_of_words": taught}.get(method, Counter())[policy.id],
                )
                for method, predicted in methods.items()
            ]
        except AloraError as error:
            failed[policy.id] = error
    return scored, failed


def calibrated(
    method: str,
    predicted: dict[str, Predictions],
    settings: EvaluationSettings,
    adapter: AdapterWeights | None,
    seed: int,
    trained_on: int,
) -> Scored:
    """Figures of ``method`` on the last part, at an operating point that is fitted on the part "validation".

    Raises:
        ConfigError: see :func:`alora.evaluation.calibration.choose_threshold`.
        DataError: no validation rows, or of one class only.
    """
    known, (split, asked) = predicted["validation"], list(predicted.items())[-1]
    point = fit_operating_point(known.logits_NL, known.label_ids_N, settings, seed)
    known_NL = all_probabilities(known.logits_NL, point.temperature)
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
