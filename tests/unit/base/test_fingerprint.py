"""What makes a base another one, and what does not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from alora.base.fingerprint import Fingerprint, template_digest, tokenizer_digest
from alora.base.stored import fingerprint_base
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer


@pytest.fixture
def weights_of(tmp_path, monkeypatch):
    """The digest of weights that lie in ``files``, each a dictionary of tensors."""
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    model, tokenizer = toy_model("qwen3"), toy_tokenizer("qwen3")

    def digest(*files, folder="base"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        index = {name: f"model-{number}.safetensors" for number, tensors in enumerate(files) for name in tensors}
        for number, tensors in enumerate(files):
            save_file(tensors, place / f"model-{number}.safetensors")
        if files:
            (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        return fingerprint_base(place, model, tokenizer).weights

    return digest


A, B = torch.arange(12.0).view(3, 4), torch.ones(5000)


def test_weights_are_their_names_dtypes_shapes_and_every_byte(weights_of):
    known = weights_of({"a": A, "b": B}, folder="0")
    later = B.clone()
    later[-1] = 2.0
    same_bytes = {"a": A, "b": B.view(torch.int32)}
    others = [{"a": A.view(4, 3), "b": B}, {"a": A, "c": B}, {"a": A, "b": later}, same_bytes, {"a": A}]
    digests = [weights_of(tensors, folder=str(number)) for number, tensors in enumerate(others, 1)]
    assert len({known, *digests}) == 1 + len(others)


def test_sharding_is_no_difference_and_every_shard_counts(weights_of):
    whole = weights_of({"a": A, "b": B}, folder="whole")
    assert weights_of({"b": B}, {"a": A}, folder="shards") == whole
    assert weights_of({"b": B}, {"a": A + 1}, folder="other") != whole


def hub_cache(root, monkeypatch, files):
    """A snapshot of x/y as huggingface_hub lays it out, and a model that came from it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    commit, base = "0" * 40, root / "models--x--y"
    snapshot = base / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (base / "blobs").mkdir()
    for number, file in enumerate((*files, root / "config.json")):
        (base / f"blobs/{number}").write_bytes(file.read_bytes() if file.exists() else b"{}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    (base / "refs").mkdir()
    (base / "refs/main").write_text(commit)
    return toy_model("qwen3")


def test_a_base_in_the_hubs_cache_is_its_snapshot_and_drawn_weights_are_themselves(weights_of, tmp_path, monkeypatch):
    shards = weights_of({"b": B}, {"a": A}, folder="shards")
    model = hub_cache(tmp_path / "hub", monkeypatch, sorted((tmp_path / "shards").iterdir()))
    tokenizer = toy_tokenizer("qwen3")
    assert fingerprint_base(Path("x/y"), model, tokenizer).weights == shards
    assert fingerprint_base(Path("x/y"), model, tokenizer, "0" * 40).weights == shards
    drawn = fingerprint_base(None, toy_model("qwen3"), tokenizer).weights
    assert fingerprint_base(None, model, tokenizer).weights == drawn != shards


def test_how_a_tokenizer_was_called_last_is_no_difference_and_what_it_does_is():
    known = tokenizer_digest(toy_tokenizer("llama3"))
    called = toy_tokenizer("llama3")
    called("a text", truncation=True, max_length=3, padding="max_length")
    assert tokenizer_digest(called) == known
    for change in ({"normalizer": {"type": "Lowercase"}}, {"pre_tokenizer": None}):
        assert tokenizer_digest(_changed("llama3", change)) != known


def test_a_special_token_is_part_of_the_template_that_writes_it():
    known = template_digest(toy_tokenizer("llama3"))
    assert template_digest(toy_tokenizer("llama3")) == known
    for name in ("bos_token", "eos_token", "pad_token"):
        other = toy_tokenizer("llama3")
        setattr(other, name, "<|other|>")
        assert template_digest(other) != known
        assert tokenizer_digest(other) == tokenizer_digest(toy_tokenizer("llama3"))  # nothing else tells


def _changed(family, change):
    tokenizer = toy_tokenizer(family)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state | change))
    return tokenizer


def test_bases_differ_in_what_is_named():
    nf4 = Fingerprint("w", "t", "c", "nf4", "config", "blocks of 64")
    assert nf4.differences(replace(nf4, quantization="none", quantization_settings="")) == ("quantization",)
    assert nf4.differences(replace(nf4, quantization_settings="blocks of 32")) == ("quantization_settings",)
    assert nf4.differences(replace(nf4, template="x", config="y")) == ("template", "config")
