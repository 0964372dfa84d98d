"""A base's tokenizer, read alone."""

import json

import pytest

from alora.base.describe import load_tokenizer
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_tokenizers import toy_tokenizer


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
