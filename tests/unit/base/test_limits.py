"""What a base has room for: prompts after truncation."""

from types import SimpleNamespace

import pytest

from alora.base.limits import longest_input, require_room, require_room_for, too_long_prompts
from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.errors import ConfigError
from alora.policy import Policy
from alora.prompt.render import Renderer
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer

POLICY = Policy("p", "Title", "Rule")


def row(words, where, policy="p"):
    conversation = Conversation(where, (Message("user", "word " * words),))
    return LabelledConversation(conversation, {policy: "ok"}, where)


def with_config(**values):
    """A model of which only the config is asked."""
    config = SimpleNamespace(**values)
    config.get_text_config = lambda: getattr(config, "text_config", config)
    return SimpleNamespace(config=config)


SCALED = {"factor": 4.0, "original_max_position_embeddings": 320}


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({}, None),
        ({"max_position_embeddings": None}, None),
        ({"text_config": SimpleNamespace(max_position_embeddings=70)}, 70),
        ({"max_position_embeddings": 400, "rope_parameters": SCALED}, 1280),
        ({"max_position_embeddings": 400, "rope_parameters": {"sliding": {"factor": 9.0}}}, 400),
    ],
    ids=["plain", "no limit", "null", "nested", "scaled", "per layer"],
)
def test_the_limit_of_a_config(values, limit):
    assert longest_input(with_config(**values)) == limit


def test_rows_that_the_base_has_no_room_for():
    model = toy_model("qwen3", vocab=len(toy_tokenizer("qwen3")))  # 512 tokens
    open_, tight = (Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=n)) for n in (60_000, 400))
    suffixes = {"p": open_.suffix(POLICY)}
    room = 512 - len(suffixes["p"].token_ids)
    require_room(model, open_, [row(10, "train.jsonl:1"), row(5000, "train.jsonl:2", policy="other")], suffixes)
    require_room(model, tight, [row(5000, "train.jsonl:3")], suffixes)
    rows = [row(10, "train.jsonl:1"), row(5000, "train.jsonl:7"), row(600, "train.jsonl:8")]
    with pytest.raises(ConfigError, match=rf"train\.jsonl:7: .*takes 512; lower prompt\.max_prefix_tokens to {room}"):
        require_room(model, open_, rows, suffixes)
    advised = Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=room))
    require_room(model, advised, rows, suffixes)


def test_a_title_that_fills_the_base_costs_its_own_policy_alone():
    model = toy_model("qwen3", vocab=len(toy_tokenizer("qwen3")))
    renderer = Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=400, instruction="title"))
    wordy = Policy("wordy", "Title " * 600, "Rule")
    suffixes = {policy.id: renderer.suffix(policy) for policy in (POLICY, wordy)}
    rows = [row(10, "train.jsonl:1"), row(20, "train.jsonl:2", policy="wordy"), row(900, "train.jsonl:3")]
    found = too_long_prompts(model, renderer, rows, suffixes)
    assert list(found) == ["wordy"]
    assert "train.jsonl:2: " in found["wordy"]
    assert "too few for any conversation" in found["wordy"]


def test_the_last_position_is_room_and_the_next_is_none():
    def renderer_of(limit):
        return Renderer(toy_tokenizer("qwen3"), PromptSettings(max_prefix_tokens=limit, instruction="title"))

    one, renderer = row(200, "train.jsonl:1"), renderer_of(60_000)
    suffix, longer = (renderer.suffix(policy) for policy in (POLICY, Policy("q", "Title " * 9, "Rule")))
    prefix = renderer.prefix(one.conversation)
    size = len(prefix.token_ids) + len(suffix.token_ids)
    exact, less = (with_config(max_position_embeddings=limit) for limit in (size, size - 1))
    require_room(exact, renderer, [one], {"p": suffix})
    require_room_for(exact, prefix, [suffix])
    for made in (renderer, renderer_of(len(prefix.token_ids))):
        with pytest.raises(ConfigError, match=f"takes {size - 1}"):
            require_room(less, made, [one], {"p": suffix})
    with pytest.raises(ConfigError, match=f"takes {size - 1}"):
        require_room_for(less, prefix, [suffix])
    with pytest.raises(ConfigError, match=f"takes {size}"):
        require_room_for(exact, prefix, [suffix, longer])
