"""An adapter and what it must beat, each as a calculation by hand from the same rows has it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from alora.config.schema import EvaluationSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.splits import Splits
from alora.evaluation.bag_of_words import fit_bag_of_words
from alora.evaluation.baselines import compare_with_baselines
from alora.evaluation.calibration import fit_operating_point, positive_probability
from alora.evaluation.predict import Predictions, labels_of
from alora.evaluation.tables import evaluate
from alora.policy import Policy
from alora.prefix.scorer import Scorer
from alora.prompt.render import Renderer
from tests.integration.bundle.conftest import PROMPT, make_base
from tests.peft_reference import random_adapter

POLICIES = [Policy("red", "No red", "Nobody says red."), Policy("blue", "No blue", "Nobody says blue.")]
SETTINGS = EvaluationSettings(bootstrap=10)


def rows(seed, count):
    """Labels follow a word that is there more often than not; every fifth row is labelled for one policy alone."""
    rng, made = np.random.default_rng(seed), []
    for number in range(count):
        labels = {policy.id: policy.labels[int(rng.integers(2))] for policy in POLICIES}
        words = [policy.id for policy in POLICIES if (labels[policy.id] == "violation") == (rng.random() < 0.8)]
        text = f"row {seed} {number} says {' '.join(words)}"
        kept = labels if number % 5 else {"blue": labels["blue"]}
        made.append(LabelledConversation(Conversation(f"{seed}-{number}", (Message("user", text),)), kept))
    return tuple(made)


@pytest.mark.parametrize("tested", [True, False])
def test_every_method_is_calibrated_on_validation_rows_and_measured_on_the_others(tested):
    base = make_base()
    renderer = Renderer(base.tokenizer, PROMPT)
    told = Renderer(base.tokenizer, replace(PROMPT, instruction="rule"))
    adapters = [
        random_adapter(base.model, seed=seed, invocation=renderer.suffix(policy).invocation_ids)
        for seed, policy in enumerate(POLICIES)
    ]
    splits = Splits(rows(0, 30), rows(1, 30), rows(2, 30) if tested else ())
    held_out, name = (splits.test, "test") if tested else (splits.validation, "validation")
    found, failed = compare_with_baselines(base, renderer, POLICIES, adapters, splits, {}, SETTINGS, seed=3)
    assert failed == {}
    for place, policy in enumerate(POLICIES):

        def adapted(prefix, policy=policy, place=place):
            with Scorer(base, [adapters[place]]) as scorer:
                return scorer.label_logits(prefix, [renderer.suffix(policy)])[0]

        def bare(prefix, policy=policy):
            suffix = told.suffix(policy)
            with torch.no_grad():
                logits = base.model(torch.tensor([prefix.token_ids + suffix.token_ids])).logits[0, -1]
            return logits[list(suffix.label_token_ids)]

        def predicted(ask, part, policy=policy):
            wanted = [row for row in part if policy.id in row.labels]
            logits = [ask(renderer.prefix(row.conversation)).tolist() for row in wanted]
            return Predictions(policy, np.array(logits), labels_of(policy, wanted))

        bag = fit_bag_of_words(policy, splits.train, 3)
        by_hand = {
            "alora": [predicted(adapted, part) for part in (splits.validation, held_out)],
            "prompt": [predicted(bare, part) for part in (splits.validation, held_out)],
            "bag_of_words": [bag.predict(part) for part in (splits.validation, held_out)],
        }
        methods = [one.evaluation for one in found[policy.id]]
        assert [item.method for item in methods] == list(by_hand)
        for one, (known, asked) in zip(found[policy.id], by_hand.values(), strict=True):
            item = one.evaluation
            kept = [one.predictions[part] for part in ("validation", item.split)]
            assert [part.label_ids_N.tolist() for part in kept] == [
                part.label_ids_N.tolist() for part in (known, asked)
            ]
            assert one.probability_NL(item.split)[:, 0] == pytest.approx(
                positive_probability(asked.logits_NL, item.operating_point.temperature, item.operating_point.bias),
                abs=1e-4,
            )
            point = fit_operating_point(known.logits_NL, known.label_ids_N, SETTINGS, 3)
            assert item.operating_point.temperature == pytest.approx(point.temperature, rel=1e-3)
            assert item.operating_point.threshold == pytest.approx(point.threshold, abs=1e-4)
            wanted = evaluate(asked, point, SETTINGS, method=item.method, seed=3)
            assert item.metrics.value("auroc") == pytest.approx(wanted.metrics.value("auroc"), abs=1e-6)
            assert item.metrics.value("ece") == pytest.approx(wanted.metrics.value("ece"), abs=1e-3)
            assert (item.split, item.label_counts) == (name, wanted.label_counts)
            assert item.adapter_digest == (adapters[place].digest if item.method == "alora" else None)


def test_rows_that_an_adapter_was_trained_on_or_calibrated_by_are_counted():
    base = make_base()
    renderer = Renderer(base.tokenizer, PROMPT)
    adapters = [
        random_adapter(base.model, seed=seed, invocation=renderer.suffix(policy).invocation_ids)
        for seed, policy in enumerate(POLICIES)
    ]
    train, validation = rows(0, 30), rows(1, 30)
    splits = Splits(train, validation, (*rows(2, 30), *train[:7], *validation[:2]))
    found, _ = compare_with_baselines(base, renderer, POLICIES, adapters, splits, {}, SETTINGS, seed=3)
    counts = {name: [scored.evaluation.trained_on for scored in methods] for name, methods in found.items()}
    # Of the adapter, the prompt, the words; rows 0 and 5 of training and row 0 of validation are blue's alone.
    assert counts == {"red": [6, 0, 5], "blue": [9, 0, 7]}
    found, _ = compare_with_baselines(
        base, renderer, POLICIES, adapters, Splits(train, validation), {}, SETTINGS, seed=3
    )
    assert {scored.evaluation.trained_on for methods in found.values() for scored in methods} == {0}
    leaking = Splits(train, (*validation, *train[:7]))
    found, _ = compare_with_baselines(base, renderer, POLICIES, adapters, leaking, {}, SETTINGS, seed=3)
    counts = {name: [scored.evaluation.trained_on for scored in methods] for name, methods in found.items()}
    assert counts == {"red": [5, 0, 5], "blue": [7, 0, 7]}
