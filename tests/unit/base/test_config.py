"""A base's config is read before room is made for what it names, and every tensor that it names is loaded."""

import json
import resource
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from alora.base.describe import load_tokenizer
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
        ({"rms_norm_eps": float("nan")}, "config.json cannot be read"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta is 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -5.0}}, "rope_theta is -5.0"),
        ({"num_hidden_layers": 2000, "layer_types": ["full_attention"] * 2000}, "num_hidden_layers is 2000"),
        ({"num_hidden_layers": 4}, "num_hidden_layers"),  # transformers': its list of kinds has three
        ({"num_attention_heads": 3}, r"o_proj.weight is \(32, 32\) in its files and \(32, 24\) by its config"),
        ({"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, r"lack tensor model.layers.3.* \(11 missing"),
    ],
)
def test_a_config_that_is_not_of_these_weights(folder, keys, words):
    _change(folder, **keys)
    with pytest.raises(BaseError, match=words):
        load_base(_settings(folder), progress=False)


@pytest.mark.parametrize("keys", [{"head_dim": 10**6}, {"hidden_size": 10**6}, {"vocab_size": 10**8}])
def test_a_size_far_beyond_the_files_takes_no_memory(folder, keys):
    _change(folder, **keys)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BaseError, match=r"describes .* parameters, and its .* files hold"):
        load_base(_settings(folder), progress=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB; transformers took 5 GB


def test_a_tensor_that_is_not_there_is_not_made_up(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(BaseError, match=r"lack tensor model\.layers\.1\.mlp\.up_proj\.weight \(1 missing\)"):
        load_base(_settings(folder), progress=False)


@pytest.mark.parametrize("labels", [10**9, -1, "x"])
def test_a_number_of_labels_that_no_base_has_is_refused_before_they_are_named(folder, labels):
    _change(folder, num_labels=labels)
    with pytest.raises(BaseError, match="num_labels is"):
        load_base(_settings(folder), progress=False)


@pytest.mark.timeout(60)  # each of them made a list of that length
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_layer": 10**8},
        {"model_type": "mpt", "n_layers": 10**8},
        {"model_type": "bart", "decoder_layers": 10**8},
        {"model_type": "qwen3", "num_hidden_layers": 10**9},
        {"model_type": "cohere2_moe", "first_k_dense_replace": 10**8},
        {"model_type": "olmo_hybrid", "num_hidden_layers": 1e8},
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 10**8}},
        {"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["global", "local"], 10**9]]},
        {"model_type": "xlstm", "num_hidden_layers": None, "num_blocks": 10**8},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 10**6},
        {"model_type": "nemotron_h", "layers_block_type": ["mlp"] * 10**5},
        {"model_type": "llama", "attribute_map": {"num_hidden_layers": "zzz"}, "zzz": 10**8},
        {"model_type": "gemma3", "text_config": {"attribute_map": {"num_hidden_layers": "zzz"}, "zzz": 10**8}},
    ],
    ids=lambda config: "-".join(config),
)
def test_more_layers_than_any_base_has_are_refused_before_a_config_is_made(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    for load in (load_tokenizer, load_base):
        with pytest.raises(BaseError, match=r"(1.*0.* in|renames keys of) its config.*; download it again"):
            load(_settings(folder), progress=False)


@pytest.mark.timeout(60)  # the first filled a list for as long as it was let
@pytest.mark.parametrize("more", [{}, {"auto_map": {"AutoConfig": "own.OwnConfig"}}])
def test_a_config_of_no_language_model_is_refused_before_it_is_made(folder, more):
    config = {"model_type": "rf_detr", "out_indices": [10**9], **more}
    (folder / "config.json").write_text(json.dumps(config))
    for load in (load_tokenizer, load_base):
        with pytest.raises(BaseError, match="trust_remote_code=true" if more else "none of the causal language models"):
            load(_settings(folder), progress=False)


def test_a_size_per_layer_is_no_number_of_layers(folder):
    _change(folder, vocab_size_per_layer_input=262144)
    load_base(_settings(folder), progress=False)


@pytest.mark.parametrize("kind", ["ll\x1b[31mama", "l" * 5000, 7, ["llama"]])
def test_a_type_that_is_no_name_is_not_printed(folder, kind, capfd):
    _change(folder, model_type=kind)
    for load in (load_tokenizer, load_base):
        with pytest.raises(BaseError, match="model_type is not a name of a model"):
            load(_settings(folder), progress=False)
    assert capfd.readouterr().err == ""


OWN_PYTHON = """\
from transformers import {base}Config, {base}ForCausalLM
class OwnConfig({base}Config):
    model_type = "own"
class OwnModel({base}ForCausalLM):
    config_class = OwnConfig
"""


def test_a_base_with_its_own_python_loads_for_who_trusts_it_alone(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    kind = json.loads((folder / "config.json").read_text())["architectures"][0].removesuffix("ForCausalLM")
    (folder / "own.py").write_text(OWN_PYTHON.format(base=kind))
    _change(folder, model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})
    with pytest.raises(BaseError, match="trust_remote_code"):
        load_base(_settings(folder), progress=False)
    trusted = replace(_settings(folder), trust_remote_code=True)
    assert type(load_base(trusted, progress=False).model).__name__ == "OwnModel"
