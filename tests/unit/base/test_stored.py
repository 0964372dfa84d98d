"""A base as files: its tokenizer, what is fetched of it, and one set of weights for every reader or none."""

import json

import pytest

from alora.base.stored import INDEX, base_folder, load_tokenizer, weight_files
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_tokenizers import toy_tokenizer


@pytest.mark.parametrize(
    ("index", "weights"),
    [
        (None, ["model.safetensors"]),
        ({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}, ["1.safetensors", "2.safetensors"]),
    ],
)
def test_of_the_hubs_weights_those_are_fetched_that_are_the_bases(index, weights, tmp_path, monkeypatch):
    """Or vLLM takes consolidated.safetensors, which many hub bases have as well."""
    fetched = []

    def fetch(name, revision, allow_patterns):
        fetched.extend(pattern for pattern in allow_patterns if "safetensors" in pattern)
        if index is not None:
            (tmp_path / INDEX).write_text(json.dumps(index))
        return str(tmp_path)

    monkeypatch.setattr("alora.base.stored.snapshot_download", fetch)
    assert base_folder(BaseSettings(source="some/base")) == tmp_path
    assert fetched == weights


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


def index(folder, places):
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def test_one_file_several_by_an_index_or_none(tmp_path):
    assert weight_files(tmp_path) == weight_files(tmp_path / "nowhere") == []
    for name in ("model.safetensors", "._model.safetensors", "pytorch_model.bin", "sub.safetensors.txt"):
        (tmp_path / name).touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    index(tmp_path, {"a": "model.safetensors"})
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    (tmp_path / "model.safetensors").rename(tmp_path / "2.safetensors")
    (tmp_path / "1.safetensors").symlink_to("2.safetensors")
    index(tmp_path, {"b": "2.safetensors", "a": "1.safetensors", "c": "2.safetensors"})
    assert weight_files(tmp_path) == [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"a": "model.safetensors", "b": "more.safetensors"}, "transformers reads model.safetensors, and vLLM"),
        ({"a": "more.safetensors"}, "transformers reads model.safetensors, and vLLM"),
        ({"a": "model.safetensors"}, "more.safetensors: the weights are in 'model.safetensors' by"),
        ({}, "does not say which tensor is in which file"),
        ({"a": ["model.safetensors"]}, "does not say which tensor is in which file"),
        (None, "more.safetensors: the weights are in 'model.safetensors' without an index"),
    ],
    ids=str,
)
def test_two_files_of_which_loaders_would_read_different_ones(places, words, tmp_path):
    for name in ("model.safetensors", "more.safetensors"):
        (tmp_path / name).touch()
    if places is not None:
        index(tmp_path, places)
    with pytest.raises(BaseError, match=words):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["gone.safetensors", "sub/1.safetensors", "/1.safetensors", "../1.safetensors", "\0"])
def test_an_index_leads_to_files_of_its_own_folder_alone(name, tmp_path):
    folder = tmp_path / "base"
    (folder / "sub").mkdir(parents=True)
    for file in ("base/1.safetensors", "base/sub/1.safetensors", "1.safetensors"):
        (tmp_path / file).touch()
    index(folder, {"a": "1.safetensors", "b": name})
    with pytest.raises(BaseError, match=r"no file of this folder; download it again"):
        weight_files(folder)


def test_an_adapter_next_to_the_weights_is_refused_though_its_link_leads_nowhere(tmp_path):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "adapter_config.json").symlink_to("later")
    with pytest.raises(BaseError, match=r"adapter_config\.json: transformers would load an adapter with the base"):
        weight_files(tmp_path)
