"""A run with a prefix store equals a run without one bit for bit, and computes each prefix once."""

import pytest
import torch

from alora.adapter.folder import AdapterSpec, new_adapter
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.prefix.packed import PackedModel, PrefixKV
from alora.prefix.store import DiskStore, MemoryStore
from alora.training.examples import Example, Target
from alora.training.optimise import fit
from tests.peft_reference import ALL_TARGETS
from tests.toy_models import toy_model

CPU = torch.device("cpu")


def _kv(token_ids) -> PrefixKV:
    values = torch.tensor(token_ids, dtype=torch.float32).repeat(2, 1).unsqueeze(-1)
    return PrefixKV(((values, values + 1), (values + 2, values + 3)), len(token_ids))


@pytest.fixture(params=["memory", "disk"])
def make_store(request, tmp_path):
    return (lambda budget: MemoryStore(budget)) if request.param == "memory" else (
        lambda budget: DiskStore(tmp_path / "store", budget, CPU)
    )  # fmt: skip


def test_a_prefix_is_computed_once_and_comes_back_equal(make_store):
    store, calls = make_store(10**6), []
    for _ in range(3):
        for ids in ((1, 2, 3), (1, 2), (3, 2, 1)):
            found = store.get(ids, lambda ids: calls.append(ids) or _kv(ids))
            assert found.length == len(ids)
            for pair, wanted in zip(found.layers, _kv(ids).layers, strict=True):
                assert all(torch.equal(one, other) for one, other in zip(pair, wanted, strict=True))
    assert calls == [(1, 2, 3), (1, 2), (3, 2, 1)]
    assert (store.hits, store.misses) == (6, 3)


def test_the_budget_holds(make_store):
    size = sum(k.nbytes + v.nbytes for k, v in _kv((1, 2, 3)).layers)
    store, calls = make_store(size + 1), []
    for _ in range(2):
        for ids in ((1, 2, 3), (4, 5, 6)):
            store.get(ids, lambda ids: calls.append(ids) or _kv(ids))
    assert calls == [(1, 2, 3), (4, 5, 6), (4, 5, 6)]


def test_a_damaged_file_is_computed_again(tmp_path):
    store = DiskStore(tmp_path, 10**6, CPU)
    store.get((1, 2), _kv)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    assert torch.equal(store.get((1, 2), _kv).layers[0][0], _kv((1, 2)).layers[0][0])
    assert store.misses == 2


def _fit(folder, cache, monkeypatch):
    calls = []
    stock = PackedModel.prefix_kv

    def counted(self, token_ids):
        calls.append(tuple(token_ids))
        return stock(self, token_ids)

    monkeypatch.setattr(PackedModel, "prefix_kv", counted)
    base = LoadedBase(toy_model("gemma3"), None, Fingerprint("w", "t", "c"), "toy")  # pyright: ignore[reportArgumentType]
    spec = AdapterSpec(4, 8.0, tuple(sorted(ALL_TARGETS)), (5, 6, 7))
    rows = [Example((20, 30 + n, 40 + n), (Target(0, (5, 6, 7, 31), (11, 12), n % 2),)) for n in range(12)]
    settings = TrainingSettings(epochs=3, batch_size=4, prefix_cache=cache, early_stopping_patience=0)
    fitted = fit(base, [new_adapter(spec, base.model, 0)], rows[:8], rows[8:], settings, folder, progress=False)
    monkeypatch.undo()
    return fitted.adapters[0].digest, len([ids for ids in calls if len(ids) == 3])


def test_training_is_the_same_bytes_and_later_epochs_are_free(tmp_path, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    found = {}
    for name in ("off", "memory", "disk", "disk again"):
        monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
        found[name] = _fit(tmp_path / name, name.split()[0], monkeypatch)
    assert len({digest for digest, _ in found.values()}) == 1
    assert found["off"][1] > 24
    assert (found["memory"][1], found["disk"][1], found["disk again"][1]) == (12, 12, 0)
