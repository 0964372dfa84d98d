"""A base as it is loaded: frozen, in eval mode, refused by name, and with weights of its own where they are drawn."""

import json

import pytest

from alora.base.load import load_base, load_skeleton
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


@pytest.mark.parametrize("kernel", ["kernels-community/flash-attn2", "evil-org/kernel", "flash_attention_2"])
def test_a_config_chooses_no_attention(folder, kernel):
    """transformers fetches what it calls org/name, and has no flash attention everywhere."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"_attn_implementation": kernel, "_experts_implementation": kernel}
    (folder / "config.json").write_text(json.dumps(config))
    given = BaseSettings(source=str(folder), device="cpu", dtype="float32")
    models = [load_base(given, progress=False).model, load_skeleton(given)]
    given.weights = "random"
    models.append(load_base(given, progress=False).model)
    assert [model.config._attn_implementation for model in models] == ["sdpa"] * 3


def test_weights_that_other_loaders_would_not_read_are_not_loaded(folder):
    """What else they would read, ``unit/base/test_weight_files.py`` has."""
    toy_model("qwen3", seed=2, vocab=len(toy_tokenizer("qwen3"))).save_pretrained(folder / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "other/model.safetensors"}))
    with pytest.raises(BaseError, match="transformers_weights"):
        load_base(BaseSettings(source=str(folder), device="cpu", dtype="float32"), progress=False)
