"""Findings about rows, each with rows that have the fault and rows that do not."""

import pytest

from alora.config.schema import PromptSettings
from alora.conversation import Conversation, LabelledConversation, Message
from alora.data_check import ERROR, WARNING, check_balance, check_duplicates, check_prompts
from alora.errors import RenderError
from alora.policy import Policy
from alora.render import Renderer
from tests.toy_tokenizers import toy_tokenizer

POLICY = Policy("p", "Title", "Rule")


def row(text, label="ok", where="train.jsonl:1", role="user"):
    return LabelledConversation(Conversation(where, (Message(role, text),)), {"p": label}, where)


def both(count):
    return [row(f"{label} {i * 'a'}", label) for label in POLICY.labels for i in range(count)]


@pytest.mark.parametrize("needed", [True, False])
def test_a_split_of_one_class(needed):
    (finding,) = check_balance("train", [row("a")] * 30, POLICY, needed)
    assert finding.severity == (ERROR if needed else WARNING)
    assert "no row is labelled 'violation'" in finding.problem


def test_few_rows_and_rare_labels_are_doubtful():
    assert not check_balance("train", both(8), POLICY, True)
    assert [f.severity for f in check_balance("train", both(7), POLICY, True)] == [WARNING] * 2
    rare = [row(f"{i}") for i in range(400)] + [row(f"{i}", "violation") for i in range(9)]
    assert "only 9 of 409 rows are 'violation'" in check_balance("train", rare, POLICY, True)[0].problem


def test_training_rows_too_few_for_anything():
    assert [f.severity for f in check_balance("train", both(1), POLICY, True)] == [WARNING, WARNING, ERROR]
    assert [f.severity for f in check_balance("train", both(2), POLICY, True)] == [WARNING, WARNING]
    assert [f.severity for f in check_balance("validation", both(1), POLICY, True)] == [WARNING, WARNING]


def test_sound_splits_have_no_findings():
    splits = {"train": both(9), "test": [row("something else", where="test.jsonl:1")]}
    assert check_duplicates(splits, POLICY) == []


def test_a_repeated_row_is_told_with_both_places():
    rows = [row("Hello  there"), row("hello there ", where="train.jsonl:9"), row("hello there", role="assistant")]
    (finding,) = check_duplicates({"train": rows}, POLICY)
    assert (finding.severity, finding.where) == (WARNING, "train")
    assert "1 of 3 rows repeat another row's conversation (train.jsonl:1 = train.jsonl:9)" in finding.problem


def test_a_row_with_two_labels():
    findings = check_duplicates({"train": [row("a")], "validation": [row("a", "violation", "v.jsonl:2")]}, POLICY)
    assert any("1 conversations have two different labels (train.jsonl:1 = v.jsonl:2)" in f.problem for f in findings)


def test_leakage_between_splits():
    splits = {
        "train": [row("a"), row("b")],
        "validation": [row("c")],
        "test": [row("A ", where="test.jsonl:3"), row("d")],
    }
    (finding,) = check_duplicates(splits, POLICY)
    assert (finding.severity, finding.where) == (WARNING, "test")
    assert "1 of its 2 rows are also in train (test.jsonl:3 = train.jsonl:1)" in finding.problem


def test_near_leakage_is_told_apart_from_leakage():
    splits = {"train": [row("order 12, please!")], "test": [row("order 345 please", where="test.jsonl:1")]}
    (finding,) = check_duplicates(splits, POLICY)
    assert "1 rows differ from one in train in digits and punctuation only" in finding.problem


def test_lengths_and_truncation_of_prompts():
    renderer = Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=200))
    short = row("Hi")
    lengths, findings = check_prompts("train", [short, short], [POLICY], renderer, 10_000)
    assert not findings
    assert lengths.truncated_rows == 0
    assert lengths.median == lengths.longest == len(renderer.prompt(short.conversation, POLICY).token_ids)
    lengths, findings = check_prompts(
        "train", [short, row("x " * 2**19, where="train.jsonl:7")], [POLICY], renderer, 10_000
    )
    assert lengths.truncated_rows == 1
    assert 0 < lengths.lost_tokens < lengths.prefix_tokens
    assert [f.severity for f in findings] == [WARNING]
    assert "1 rows are cut from the middle" in findings[0].problem
    assert "train.jsonl:7" in findings[0].problem


def test_prompts_longer_than_the_base_takes():
    renderer = Renderer(toy_tokenizer("llama3"), PromptSettings())
    _, findings = check_prompts("train", [row("word " * 100, where="train.jsonl:2")], [POLICY], renderer, 50)
    assert (findings[0].severity, findings[0].where) == (ERROR, "train.jsonl:2")
    assert "the base takes 50" in findings[0].problem


def test_rows_that_do_not_render_are_told_and_the_rest_counted():
    renderer = Renderer(toy_tokenizer("granite"), PromptSettings())
    rows = [row("a\ud800", where=f"train.jsonl:{i}") for i in range(25)]
    _, findings = check_prompts("train", rows, [POLICY], renderer, 10_000)
    assert len(findings) == 21
    assert "... and 5 more" in findings[-1].problem


def test_a_prompt_that_activates_elsewhere_is_an_error():
    """Negative control: a renderer whose suffix is preceded by its own invocation *inside* the suffix part."""
    renderer = Renderer(toy_tokenizer("qwen3"), PromptSettings())
    suffix = renderer.suffix(POLICY)
    object.__setattr__(suffix, "token_ids", suffix.token_ids + suffix.invocation_ids)
    _, findings = check_prompts("train", [row("Hi")], [POLICY], renderer, 10_000)
    assert [f.severity for f in findings] == [ERROR]
    assert "the adapter would start at token" in findings[0].problem
    with pytest.raises(RenderError, match="PEFT would start the adapter elsewhere"):
        type(suffix)(suffix.token_ids, suffix.invocation_ids, suffix.label_token_ids)
