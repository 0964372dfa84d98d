"""Which files of earlier runs are found, and which make room first."""

import os
from dataclasses import replace

import pytest
import torch

from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.prefix.plan import PrefixKV
from alora.prefix.store import DiskStore, MemoryStore, open_store
from tests.toy_models import toy_model

CPU = torch.device("cpu")


def kv(token_ids) -> PrefixKV:
    values = torch.tensor(token_ids, dtype=torch.float32).repeat(2, 1).unsqueeze(-1)
    return PrefixKV(((values, values + 1),), len(token_ids))


def test_what_a_run_has_used_is_the_last_that_a_later_one_lets_go(tmp_path):
    made = {}
    for ids in ((1, 2), (3, 4)):
        before = set(tmp_path.iterdir())
        DiskStore(tmp_path, 10**6, CPU).get(ids, kv)
        (made[ids],) = set(tmp_path.iterdir()) - before
    os.utime(made[1, 2], (1, 1))
    os.utime(made[3, 4], (2, 2))
    assert DiskStore(tmp_path, 10**6, CPU).look_up((1, 2)) is not None
    size = made[1, 2].stat().st_size
    DiskStore(tmp_path, 2 * size, CPU).get((5, 6), kv)
    assert [file.exists() for file in made.values()] == [True, False]


@pytest.mark.parametrize("odd", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_every_half_of_every_layer_has_the_prefixs_tokens(odd, tmp_path):
    whole, long = kv((1, 2)).layers[0][0], kv((1, 2, 3)).layers[0][0]
    layers = tuple(tuple((long if (layer, half) == odd else whole).clone() for half in (0, 1)) for layer in (0, 1))
    store = DiskStore(tmp_path, 10**6, CPU)
    store.keep((1, 2), PrefixKV(layers, 2))  # pyright: ignore[reportArgumentType]
    with pytest.warns(UserWarning, match="not 2 tokens in every layer"):
        assert store.look_up((1, 2)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_prefix_that_found_room_after_all_is_no_shortfall():
    store = MemoryStore(0)
    assert store.look_up((1, 2)) is None
    store.keep((1, 2), kv((1, 2)))
    assert "kept 0 of 1 prefixes" in (store.shortfall() or "")
    store._budget = 10**6
    store.keep((1, 2), kv((1, 2)))
    assert store.shortfall() is None


@pytest.mark.parametrize("changed", ["weights", "config", "quantization", "quantization_settings"])
def test_what_one_base_left_on_disk_is_not_found_for_another(changed, tmp_path, monkeypatch):
    """RoPE is in the config alone, and a quantized base has the weights' digest of the unquantized one."""
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path))
    settings = TrainingSettings(prefix_cache="disk")
    fingerprint = Fingerprint("weights", "tokenizer", "template", config="config")
    model = toy_model("qwen3")

    def opened(fingerprint):
        store = open_store(settings, LoadedBase(model, None, fingerprint, "toy"))  # pyright: ignore[reportArgumentType]
        assert store is not None
        return store

    opened(fingerprint).get((1, 2), kv)
    assert opened(fingerprint).look_up((1, 2)) is not None
    assert opened(replace(fingerprint, **{changed: "other"})).look_up((1, 2)) is None
