"""A base as it is loaded: frozen, in eval mode, whole or refused, and with weights of its own where they are drawn."""

import json

import pytest
from safetensors.torch import load_file, save_file

from alora.base.load import load_base, load_skeleton
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_models import toy_model
from tests.toy_recipe import toy_base_folder
from tests.toy_tokenizers import toy_tokenizer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    return toy_base_folder(tmp_path / "base", seed=1)


def _settings(folder):
    return BaseSettings(source=str(folder), device="cpu", dtype="float32")


def _change(folder, **keys):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def test_drawn_weights_are_the_same_each_time_and_not_the_stored_ones(folder):
    given = _settings(folder)
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
    _change(folder, _attn_implementation=kernel, _experts_implementation=kernel)
    given = _settings(folder)
    models = [load_base(given, progress=False).model, load_skeleton(given)]
    given.weights = "random"
    models.append(load_base(given, progress=False).model)
    assert [model.config._attn_implementation for model in models] == ["sdpa"] * 3


def test_weights_that_other_loaders_would_not_read_are_not_loaded(folder):
    """What else they would read, ``unit/base/test_stored.py`` has."""
    toy_model("qwen3", seed=2, vocab=len(toy_tokenizer("qwen3"))).save_pretrained(folder / "other")
    _change(folder, transformers_weights="other/model.safetensors")
    with pytest.raises(BaseError, match="transformers_weights"):
        load_base(_settings(folder), progress=False)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_hidden_layers": 4}, "num_hidden_layers"),  # transformers': its list of kinds has three
        ({"num_attention_heads": 3}, r"o_proj.weight is \(32, 32\) in its files and \(32, 24\) by its config"),
        ({"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, r"lack tensor model.layers.3.* \(11 missing"),
    ],
)
def test_a_config_that_is_not_of_these_weights(folder, keys, words):
    _change(folder, **keys)
    with pytest.raises(BaseError, match=words):
        load_base(_settings(folder), progress=False)


def test_a_tensor_that_is_not_there_is_not_made_up(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(BaseError, match=r"lack tensor model\.layers\.1\.mlp\.up_proj\.weight \(1 missing\)"):
        load_base(_settings(folder), progress=False)
