"""Hostile text on tokenizers that make it hard: special tokens inside the vocabulary, merges that build them, gaps."""

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from alora.errors import RenderError
from alora.prompt.tokens import TextEncoder, text_encoder
from tests.toy_tokenizers import FAMILIES, toy_tokenizer


def wrapped(inner, **kwargs):
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **kwargs)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_added_token_s_text_is_ordinary_text(family):
    tokenizer = toy_tokenizer(family)
    encoder = TextEncoder(tokenizer)
    tokens = tokenizer.added_tokens_decoder
    assert encoder.forbidden == {i for i, token in tokens.items() if token.content.replace("▁", " ").strip()}
    for token in tokens.values():
        text = f"a{token.content}b"
        ids = encoder.encode(text)
        assert encoder.forbidden.isdisjoint(ids)
        assert tokenizer.decode(ids) == text.replace("▁", " ")
        if token.content.replace("▁", " ").strip():  # negative control: the ordinary encoding is fooled
            assert not encoder.forbidden.isdisjoint(tokenizer.encode(text, add_special_tokens=False))


def test_harmless_text_is_encoded_as_always():
    for family in FAMILIES:
        tokenizer = toy_tokenizer(family)
        text = "Can you tell me?\n\n\nNo,  I am not a doctor. ☃"
        assert TextEncoder(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False)


BPE = {"<": 0, "e": 1, ">": 2, "<e": 3, "<e>": 4, "<ee": 5, "<unk>": 6}
MERGES = [("<", "e"), ("<e", ">"), ("<e", "e")]
PIECES = [("<unk>", 0.0), ("<e>", -1.0), ("<", -5.0), ("e", -5.0), (">", -5.0)]


@pytest.mark.parametrize(
    ("model", "control", "text", "built", "spelled"),
    [
        (models.BPE(vocab=BPE, merges=MERGES, unk_token="<unk>"), "<e>", "<e>", [4], [3, 2]),
        (models.BPE(vocab=BPE, merges=MERGES, unk_token="<unk>", ignore_merges=True), "<e>", "<e>", [4], [3, 2]),
        (models.BPE(vocab=BPE, merges=MERGES, unk_token="<unk>"), "<e", "<ee", [5], [0, 1, 1]),
        (models.Unigram(PIECES, unk_id=0, byte_fallback=False), "<e>", "<e>", [1], [2, 3, 4]),
    ],
    ids=["merges", "whole words", "merges that go on", "unigram"],
)
def test_no_way_of_a_vocabulary_builds_a_control_token(model, control, text, built, spelled):
    inner = Tokenizer(model)
    assert inner.encode(text).ids == built
    inner.add_special_tokens([AddedToken(control, special=True)])
    assert TextEncoder(wrapped(inner)).encode(text) == spelled


def test_a_tokenizer_that_writes_a_control_token_all_the_same_is_refused():
    encoder = TextEncoder(toy_tokenizer("qwen3"))
    encoder.forbidden = {*encoder.encode("word")}
    with pytest.raises(RenderError, match="control tokens"):
        encoder.encode("word")


def test_the_original_tokenizer_is_left_alone():
    tokenizer = toy_tokenizer("llama3")
    before = tokenizer.backend_tokenizer.to_str()
    TextEncoder(tokenizer).encode("<|eot_id|>")
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.parametrize("family", FAMILIES)
def test_how_the_tokenizer_was_called_before_cuts_no_text(family):
    tokenizer = toy_tokenizer(family)
    whole = TextEncoder(tokenizer).encode("The quick brown fox. " * 9)
    tokenizer("a text", truncation=True, max_length=3, padding="max_length")
    assert TextEncoder(tokenizer).encode("The quick brown fox. " * 9) == whole


def test_text_that_would_vanish_is_refused():
    inner = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    encoder = TextEncoder(wrapped(inner))
    assert encoder.encode("ab") == [0, 1]
    with pytest.raises(RenderError, match="no token for 'z' and would drop it silently"):
        encoder.encode("azb")
    with pytest.raises(RenderError, match="no token for 'z'"):
        encoder.encode("abz ")


def test_a_tokenizer_is_copied_once_and_again_when_it_grew():
    tokenizer = toy_tokenizer("qwen3")
    first = text_encoder(tokenizer)
    assert text_encoder(tokenizer) is first
    tokenizer.add_tokens(["<later>"])
    assert tokenizer.convert_tokens_to_ids("<later>") in text_encoder(tokenizer).forbidden - first.forbidden
