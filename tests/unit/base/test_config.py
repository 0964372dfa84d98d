"""Every tensor that a base's config names is loaded."""

import json

import pytest
from safetensors.torch import load_file, save_file

from alora.base.load import load_base
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_recipe import toy_base_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    return toy_base_folder(tmp_path / "base")


def _settings(folder):
    return BaseSettings(source=str(folder), device="cpu", dtype="float32")


def _change(folder, **keys):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


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
