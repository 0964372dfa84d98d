"""Prompts become calls of several lengths; prompts that check nothing are refused."""

import pytest

from alora.config.schema import PromptSettings
from alora.errors import AdapterError, ConfigError
from alora.identity.capture import LONG_PREFIX_TOKENS, bare_suffix, identity_probes, make_calls
from alora.prompt.render import Prefix, Prompt, Renderer, Suffix
from tests.toy_models import toy_model
from tests.toy_tokenizers import FAMILIES, toy_tokenizer

MODEL = toy_model("llama")
SUFFIX = Suffix((5, 6, 7, 9), (5, 6), (3, 4))


def prompt(length: int, suffix: Suffix = SUFFIX) -> Prompt:
    return Prompt(Prefix(tuple(range(10, 10 + length))), suffix)


def test_lengths_and_padding():
    calls = make_calls([prompt(30), prompt(12)], MODEL, (5, 6))
    assert [(call.name, call.tokens, call.activation_B) for call in calls[:-1]] == [
        ("short prefix", 7, (3,)),
        ("conversation 2", 16, (12,)),
        ("conversation 1", 34, (30,)),
        ("long prefix", 512, (508,)),  # the toy's positions end at 512
    ]
    batch = calls[-1]
    assert batch.padding_B == (27, 0, 18)
    assert batch.activation_B == (30, 30, 30)
    for call in calls:
        for row, index in enumerate(call.activation_B):
            assert call.input_ids_BT[row, index : index + 2].tolist() == [5, 6]


def test_one_prompt_still_gives_a_padded_batch():
    batch = make_calls([prompt(12)], MODEL, (5, 6))[-1]
    assert batch.padding_B == (9, 0)


def test_the_long_prefix_is_bounded():
    model = toy_model("llama")
    model.config.max_position_embeddings = 10_000
    long = next(call for call in make_calls([prompt(12)], model, (5, 6)) if call.name == "long prefix")
    assert long.activation_B == (LONG_PREFIX_TOKENS,)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([], "no prompts"),
        ([prompt(12, Suffix((8, 9), (8,), ()))], r"opens with token ids \[8, 9\]"),
        ([prompt(0)], "its prefix is empty"),
    ],
)
def test_prompts_that_prove_nothing(prompts: list[Prompt], said: str):
    with pytest.raises(AdapterError, match=said):
        make_calls(prompts, MODEL, (5, 6))


def test_a_single_token_suffix_is_refused():
    with pytest.raises(AdapterError, match="one token, so a late activation"):
        make_calls([prompt(12, Suffix((5,), (5,), ()))], MODEL, (5,))


@pytest.mark.parametrize("family", FAMILIES)
def test_probes_render_on_every_family_and_differ_in_length(family: str):
    renderer = Renderer(toy_tokenizer(family), PromptSettings())
    prefixes = [renderer.prefix(conversation) for conversation in identity_probes(3)]
    assert len({len(prefix.token_ids) for prefix in prefixes}) == 3
    invocation = prefixes[0].token_ids[-3:]
    suffix = bare_suffix(invocation, prefixes[0])
    assert suffix.token_ids[:3] == invocation
    assert len(suffix.token_ids) == 7


@pytest.mark.parametrize("count", [0, 99])
def test_more_probes_than_there_are(count: int):
    with pytest.raises(ConfigError, match=f"identity.conversations={count}"):
        identity_probes(count)
