"""Several conversations in one call, and behind kept prefixes: the verdicts of one after another."""

import itertools

import pytest
import torch

from alora.errors import AdapterError
from alora.evaluation.predict import answers
from alora.prefix.passes import passes
from alora.prefix.scorer import Scorer
from alora.prefix.store import open_store
from alora.prompt.render import Prefix, Question, Suffix
from tests.peft_reference import peft_label_logits, peft_model, random_adapter
from tests.toy_models import as_base, toy_model

SUFFIXES = (Suffix((5, 6, 7), (5,), (3, 4)), Suffix((5, 8, 9, 10), (5,), (3, 4, 11)), Suffix((5, 6), (5,), (7, 4)))
PREFIXES = [Prefix(tuple(range(12, 12 + length))) for length in (9, 4, 17)]
QUESTIONS = [Question(PREFIXES[0], SUFFIXES, (0, 1, 2)), Question(PREFIXES[1], SUFFIXES[1:], (1, 2)),
             Question(PREFIXES[2], SUFFIXES[:1], (0,)), Question(PREFIXES[0], SUFFIXES[:1], (0,))]  # fmt: skip


def adapters(model, activated=(True, True, True)):
    made = []
    for seed, (rank, scaling, rank_stabilised) in enumerate([(4, 2.0, False), (2, 0.7, False), (3, 1.3, True)]):
        made.append(
            random_adapter(
                model, rank, seed, ("down_proj", "q_proj", "v_proj"), (5,) if activated[seed] else None, model.dtype,
                scaling, rank_stabilised,
            )
        )  # fmt: skip
    return made


@pytest.mark.parametrize("activated", [(True, True, True), (False, False, False), (True, False, True)])
def test_rows_together_are_rows_one_by_one_and_pefts(activated):
    model = toy_model("qwen3", torch.float64)
    base, made = as_base(model), adapters(model, activated)
    reference = [peft_model(model, adapter) for adapter in made]
    with Scorer(base, made) as scorer:
        together = scorer.score_rows(QUESTIONS)
        for question, answers in zip(QUESTIONS, together, strict=True):
            alone = scorer.label_logits(question.prefix, question.suffixes, question.asked)
            assert [row.shape for row in answers] == [row.shape for row in alone]
            for one, other in zip(answers, alone, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
            for policy, suffix, answer in zip(question.asked, question.suffixes, answers, strict=True):
                theirs = peft_label_logits(
                    reference[policy], question.prefix.token_ids, suffix.token_ids, suffix.label_token_ids
                )
                torch.testing.assert_close(answer, theirs, rtol=1e-10, atol=1e-10)
        with pytest.raises(ValueError, match="3 suffixes for 1 adapters"):
            scorer.score_rows([Question(PREFIXES[0], SUFFIXES, (0,))])
    with pytest.raises(AdapterError, match="closed"):  # the base would answer
        scorer.score_rows(QUESTIONS)


def test_probabilities_are_the_same_in_any_order_and_any_batch():
    """In float32 within 1e-5 of one conversation at a time; the same call again gives the same bits."""
    model = toy_model("qwen3")
    base = as_base(model)
    prefixes = [Prefix(tuple((7 * n + 3 * k) % 90 + 12 for k in range(length)))
                for n, length in enumerate((30, 9, 61, 10, 11, 30, 29, 2, 44, 9, 31, 58))]  # fmt: skip
    questions = [Question(prefix, SUFFIXES, (0, 1, 2)) for prefix in prefixes]
    with Scorer(base, adapters(model)) as scorer:

        def probabilities(order, max_tokens):
            found = answers(scorer.score_rows, [questions[index] for index in order], max_tokens)
            rows = [[torch.tensor(logits_L).softmax(0) for logits_L in logits_PL] for _, logits_PL in found]
            return [rows[order.index(index)] for index in range(len(order))]

        asked = list(range(len(questions)))
        alone = probabilities(asked, 1)
        for order in (asked, asked[::-1], asked[1::2] + asked[::2]):
            for max_tokens in (70, 150, 10**6):
                found, again = (probabilities(order, max_tokens) for _ in range(2))
                torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
                torch.testing.assert_close(found, again, rtol=0, atol=0)
    apart = min(float((one[0] - other[0]).abs().max()) for one, other in itertools.combinations(alone, 2))
    assert apart > 1e-4, "another row's answer would be seen"


def test_a_kept_prefix_is_not_computed_again_and_changes_nothing():
    model = toy_model("qwen3")
    base = as_base(model)
    store = open_store(10**8, model, [prefix.token_ids for prefix in PREFIXES])
    answers = []
    for kept in (None, store, store):
        with Scorer(base, adapters(model), store=kept) as scorer:
            answers.append([row for rows in scorer.score_rows(QUESTIONS) for row in rows])
    assert (store.misses, store.hits) == (3, 3)
    for other in answers[1:]:
        torch.testing.assert_close(answers[0], other, rtol=0, atol=1e-5)


def test_a_pass_holds_no_more_tokens_than_the_limit_but_for_one_suffix_alone():
    sizes = [3, 4, 2, 9, 1, 5, 1, 7]
    parts = passes(sizes, lambda size: size, 7)
    assert parts == [[3, 4], [2], [9], [1, 5, 1], [7]]
