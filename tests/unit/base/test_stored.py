"""What is fetched of a base on the hub for an engine that loads it itself."""

import json

import pytest

from alora.base.stored import base_folder
from alora.base.weight_files import INDEX
from alora.config.schema import BaseSettings


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
