"""What is fetched of a base on the hub for an engine that loads it itself."""

import json

import pytest
import torch
from safetensors.torch import save_file

from alora.base.cache import remember_of
from alora.base.stored import base_folder, fingerprint_base
from alora.base.weight_files import INDEX
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_models import toy_model
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


def test_a_broken_index_on_the_hub_is_said(tmp_path, monkeypatch):
    (tmp_path / INDEX).write_text("{")
    monkeypatch.setattr("alora.base.stored.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(BaseError, match=r"index\.json cannot be read"):
        base_folder(BaseSettings(source="some/base"))


def test_a_file_that_is_exchanged_meanwhile_gets_no_digest_of_the_one_before(tmp_path, monkeypatch):
    """Which would be remembered for good."""
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    model, tokenizer = toy_model("qwen3"), toy_tokenizer("qwen3")
    for name in ("first", "base"):
        (tmp_path / name).mkdir()
        save_file({"x": torch.tensor([len(name)])}, tmp_path / name / "model.safetensors")
    first = fingerprint_base(tmp_path / "first", model, tokenizer)

    def remember(files, *given):
        (tmp_path / "first/model.safetensors").replace(files[0])
        return remember_of(files, *given)

    monkeypatch.setattr("alora.base.stored.remember_of", remember)
    assert fingerprint_base(tmp_path / "base", model, tokenizer) == first
