"""Rows become prefixes and targets: who answers, with which tokens, and what each answer weighs."""

from dataclasses import replace

import pytest

from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.errors import TrainingError
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.training.examples import balanced, collate, examples
from tests.toy_tokenizers import toy_tokenizer

RED = Policy("red", "No red", "")
TONE = Policy("tone", "Tone", "", ("rude", "dry", "warm"), ("No", "Yes", "yes"))
ROWS = [
    LabelledConversation(Conversation(str(number), (Message("user", f"word {number}"),)), labels, f"t.jsonl:{number}")
    for number, labels in enumerate(({"red": "ok", "tone": "rude"}, {}, {"tone": "warm"}, {"red": "violation"}))
]


@pytest.fixture(scope="module")
def renderer():
    return Renderer(toy_tokenizer("qwen3"), PromptSettings())


@pytest.mark.parametrize("activated", [True, False])
def test_a_row_asks_the_policies_that_it_is_labelled_for(renderer, activated):
    found = examples(ROWS, [RED, TONE], renderer, activated)
    rows = [ROWS[0], ROWS[2], ROWS[3]]
    assert [[(t.policy, t.label) for t in example.targets] for example in found] == [
        [(0, 1), (1, 0)],
        [(1, 2)],
        [(0, 0)],
    ]
    for example, row in zip(found, rows, strict=True):
        prefix = renderer.prefix(row.conversation).token_ids
        assert example.prefix_ids == (prefix if activated else ())
        for target in example.targets:
            suffix = renderer.suffix((RED, TONE)[target.policy])
            assert target.label_token_ids == suffix.label_token_ids
            assert (*example.prefix_ids, *target.suffix_ids) == prefix + suffix.token_ids


def test_a_prompt_that_activates_elsewhere_is_no_example():
    renderer = Renderer(toy_tokenizer("qwen3"), PromptSettings())
    suffix = renderer.suffix(RED)
    object.__setattr__(suffix, "token_ids", suffix.token_ids + suffix.invocation_ids)
    with pytest.raises(TrainingError, match=r"t\.jsonl:0"):
        examples(ROWS, [RED], renderer, activated=True)


def test_every_policy_of_a_batch_weighs_the_same(renderer):
    found = examples(ROWS, [RED, TONE], renderer, activated=True)
    batch = collate([*found, found[1]])["batch"]
    assert batch.prefixes == tuple(example.prefix_ids for example in [*found, found[1]])
    assert [(pair.prefix, pair.policy) for pair in batch.pairs] == [(0, 0), (0, 1), (1, 1), (2, 0), (3, 1)]
    assert batch.labels == (1, 0, 2, 0, 2)
    assert batch.weights == pytest.approx((1 / 2, 1 / 3, 1 / 3, 1 / 2, 1 / 3))


def test_a_row_counts_by_its_weight(renderer):
    rows = [replace(ROWS[0], weight=0.5), *ROWS[1:]]
    batch = collate(examples(rows, [RED, TONE], renderer, activated=True))["batch"]
    assert batch.weights == pytest.approx((0.5 / 2, 0.5 / 2, 1 / 2, 1 / 2))


def test_balanced_labels_count_the_same_in_each_policy(renderer):
    found = balanced(examples([*ROWS, ROWS[0], ROWS[0]], [RED, TONE], renderer, activated=True))
    assert found[0].targets[0].label_weights == (2.0, 2 / 3)  # red: one violation, three ok
    assert found[0].targets[1].label_weights == (2 / 3, 1.0, 2.0)  # tone: three rude, no dry, one warm
    batch = collate(found)["batch"]
    assert batch.label_weights[:2] == ((2.0, 2 / 3), (2 / 3, 1.0, 2.0))
    assert collate(examples(ROWS, [RED, TONE], renderer, activated=True))["batch"].label_weights == ()
