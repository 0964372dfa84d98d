"""A base that is computed elsewhere: the tokenizer and template that count are those that make prompts here."""

import json

import pytest

from alora.base.describe import describe_prompts, load_tokenizer
from alora.base.fingerprint import Fingerprint, template_digest, tokenizer_digest
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_tokenizers import toy_tokenizer


def test_prompts_are_those_of_the_tokenizer_here_whatever_the_weights_are(tmp_path):
    tokenizer = toy_tokenizer("qwen3")
    tokenizer.save_pretrained(tmp_path)
    elsewhere = Fingerprint("weights", "tokenizer", "template", "nf4", "config", "settings")
    found = describe_prompts(BaseSettings(source=str(tmp_path)), elsewhere)
    assert found.source == str(tmp_path)
    assert found.fingerprint == Fingerprint(
        "weights", tokenizer_digest(tokenizer), template_digest(tokenizer), "nf4", "config", "settings"
    )


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
