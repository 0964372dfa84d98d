"""A base as it is loaded: frozen, in eval mode, refused by name, and with weights of its own where they are drawn."""

import json

import pytest

from alora.base.load import load_base
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    tokenizer, folder = toy_tokenizer("qwen3"), tmp_path / "base"
    toy_model("qwen3", seed=1, vocab=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_drawn_weights_are_the_same_each_time_and_not_the_stored_ones(folder):
    given = BaseSettings(source=str(folder), device="cpu", dtype="float32")
    stored = load_base(given, progress=False)
    given.weights = "random"
    drawn, again = (load_base(given, progress=False) for _ in range(2))
    assert drawn.fingerprint == again.fingerprint
    assert drawn.fingerprint.differences(stored.fingerprint) == ("weights",)
    for base in (stored, drawn):
        assert not any(module.training for module in base.model.modules())
        assert not any(parameter.requires_grad for parameter in base.model.parameters())


def test_a_base_that_alora_refuses_is_not_loaded(folder):
    config = json.loads((folder / "config.json").read_text())
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dataset": "c4"}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    with pytest.raises(BaseError, match="is quantized with gptq, which alora refuses"):
        load_base(BaseSettings(source=str(folder), device="cpu", dtype="float32"), progress=False)
