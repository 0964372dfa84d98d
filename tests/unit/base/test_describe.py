"""A base's tokenizer, read alone."""

import base64
import json

import pytest

from alora.base.describe import load_tokenizer
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_tokenizers import toy_tokenizer


@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": "a"}])
def test_a_tokenizer_that_makes_text_grow_is_refused(tmp_path, pattern):
    toy_tokenizer("qwen3").save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    grows = {"type": "Replace", "pattern": pattern, "content": "a" * 10}
    chain = {"type": "Sequence", "normalizers": [{"type": "NFC"}, *[grows] * 12]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": chain}))
    with pytest.raises(BaseError, match=r"normalizers make 1e\+12 characters of one"):
        load_tokenizer(BaseSettings(source=str(tmp_path)))


def test_a_normalizer_that_prepends_pages_and_a_length_that_is_no_number_are_refused(tmp_path):
    toy_tokenizer("qwen3").save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    whole = file.read_text()
    file.write_text(json.dumps(json.loads(whole) | {"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}))
    with pytest.raises(BaseError, match=r"normalizers make 1e\+06 characters of one"):
        load_tokenizer(BaseSettings(source=str(tmp_path)))
    # As SentencePiece writes it: the size of its trie, the trie, texts that end with zero.
    charsmap = (4).to_bytes(4, "little") + bytes(4) + b"short\0" + b"a" * 10**6 + b"\0"
    precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    file.write_text(json.dumps(json.loads(whole) | {"normalizer": precompiled}))
    with pytest.raises(BaseError, match=r"normalizers make 1e\+06 characters of one"):
        load_tokenizer(BaseSettings(source=str(tmp_path)))
    file.write_text(whole)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": "x"}))
    with pytest.raises(BaseError, match="model_max_length"):
        load_tokenizer(BaseSettings(source=str(tmp_path)))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 99, "model_input_names": 5}))
    with pytest.raises(BaseError, match="model_input_names is not a list of names"):
        load_tokenizer(BaseSettings(source=str(tmp_path)))


def test_a_panic_of_rust_while_a_tokenizer_is_read_is_a_refusal(tmp_path):
    toy_tokenizer("qwen3").save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["continuing_subword_prefix"] = "##longer than its token"
    file.write_text(json.dumps(content))
    with pytest.raises(BaseError, match="cannot be loaded"):
        load_tokenizer(BaseSettings(source=str(tmp_path)))


def test_a_tokenizer_that_drops_merges_at_random_is_refused(tmp_path):
    toy_tokenizer("qwen3").save_pretrained(tmp_path)
    file, settings = tmp_path / "tokenizer.json", BaseSettings(source=str(tmp_path))
    content = json.loads(file.read_text())
    for dropout in (0.0, None):
        content["model"]["dropout"] = dropout
        file.write_text(json.dumps(content))
        load_tokenizer(settings)
    content["model"]["dropout"] = 0.05
    file.write_text(json.dumps(content))
    with pytest.raises(BaseError, match=r"BPE dropout 0\.05, .*; set model\.dropout to null"):
        load_tokenizer(settings)
