"""What a prompt's check finds: its lengths, what is cut, where it activates."""

import pytest

from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.findings import ERROR, WARNING
from alora.errors import RenderError
from alora.policy import Policy
from alora.prompt.prompt_checks import check_prompts
from alora.prompt.render import Renderer
from tests.toy_tokenizers import toy_tokenizer

POLICY = Policy("p", "Title", "Rule")


def row(text, label="ok", where="train.jsonl:1", role="user"):
    return LabelledConversation(Conversation(where, (Message(role, text),)), {"p": label}, where)


def test_lengths_and_truncation_of_prompts():
    renderer = Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=200))
    short = row("Hi")
    lengths, findings = check_prompts("train", [short, short], [POLICY], renderer, 10_000)
    assert not findings
    assert lengths.truncated_rows == 0
    assert lengths.median == lengths.longest == len(renderer.prompt(short.conversation, POLICY).token_ids)
    lengths, findings = check_prompts(
        "train", [*[short] * 19, row("x " * 2**13, where="train.jsonl:7")], [POLICY], renderer, 10_000
    )
    assert lengths.truncated_rows == 1
    assert 0 < lengths.lost_tokens < lengths.prefix_tokens
    assert [f.severity for f in findings] == [WARNING]
    assert "train.jsonl:7" in findings[0].problem


def test_with_windows_training_rows_alone_are_cut_and_that_is_no_error():
    rows = [row("x " * 2**11, where=f"train.jsonl:{number}") for number in range(3)]

    def renderer_of(truncation):
        return Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=200, truncation=truncation))

    def checked(name, truncation):
        return check_prompts(name, rows, [POLICY], renderer_of(truncation), 10_000)

    lengths, (finding,) = checked("test", "middle")
    assert (lengths.truncated_rows, finding.code) == (3, "TRUNCATED_MOST")
    lengths, (finding,) = checked("train", "windows")
    assert (lengths.truncated_rows, finding.severity) == (3, WARNING)
    lengths, findings = checked("test", "windows")
    assert (lengths.truncated_rows, lengths.lost_tokens, findings) == (0, 0, [])
    assert lengths.windows == sum(len(renderer_of("windows").windows(row.conversation)) for row in rows) > 3 * 10


def test_prompts_longer_than_the_base_takes():
    renderer = Renderer(toy_tokenizer("llama3"), PromptSettings())
    _, findings = check_prompts("train", [row("word " * 100, where="train.jsonl:2")], [POLICY], renderer, 50)
    assert (findings[0].severity, findings[0].where) == (ERROR, "train.jsonl:2")
    assert "the base takes 50" in findings[0].problem
    lengths, _ = check_prompts("train", [row("word")], [POLICY], renderer, 10_000)
    for takes, count in ((lengths.longest, 0), (lengths.longest - 1, 1)):
        assert len(check_prompts("train", [row("word")], [POLICY], renderer, takes)[1]) == count


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
