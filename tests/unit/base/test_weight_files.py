"""Of a base's folder, transformers, vLLM and the fingerprint read the same files, or none does."""

import json

import pytest

from alora.base.weight_files import INDEX, weight_files
from alora.errors import BaseError


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
