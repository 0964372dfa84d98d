"""A training with a store computes each prefix once, and one that is resumed goes on with the same bytes."""

import pytest
import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, new_adapter
from alora.config.schema import TrainingSettings
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.prefix.store import open_store
from alora.training import loop
from alora.training.examples import Example, Target
from alora.training.loop import fit
from tests.peft_reference import ALL_TARGETS, random_adapter, relative_error
from tests.toy_models import as_base, toy_model

ROWS = [
    Example(tuple(range(20, 40 + 9 * n)), (Target(0, (5, 6, 7, 31), (11, 12), n % 2),)) for n in (0, 3, 1, 2) * 3
] + [Example((20, 30 + n, 40 + n), (Target(0, (5, 6, 7, 31), (11, 12), n % 2),)) for n in range(12)]
DISTINCT = 16


class Ran:
    """The groups of prefixes that a training computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[tuple[tuple[int, ...], ...]] = []
        stock = PackedModel.run_prefixes

        def noted(model, prefixes):
            self.groups.append(tuple(map(tuple, prefixes)))
            return stock(model, prefixes)

        monkeypatch.setattr(PackedModel, "run_prefixes", noted)

    @property
    def count(self) -> int:
        """Prefixes that were computed, less those of the check of the model class."""
        return sum(len(ids) != 8 for group in self.groups for ids in group)


def _fit(folder, progress=False, **settings):
    base = as_base(toy_model("gemma3"))
    spec = AdapterSpec(4, 8.0, tuple(sorted(ALL_TARGETS)), (5, 6, 7))
    chosen = TrainingSettings(**{"epochs": 3, "batch_size": 4, "early_stopping_patience": 0} | settings)
    return fit(base, [new_adapter(spec, base.model, 0)], ROWS[:16], ROWS[16:], chosen, folder, progress=progress)


def test_what_is_kept_is_computed_once_and_changes_rounding_alone(tmp_path, monkeypatch):
    kept, ran = _fit(tmp_path / "kept"), Ran(monkeypatch)
    again = _fit(tmp_path / "again")
    assert ran.count == DISTINCT
    assert again.adapters[0].digest == kept.adapters[0].digest
    ran.groups.clear()
    none = _fit(tmp_path / "none", prefix_cache_bytes=0)
    assert ran.count > 2 * DISTINCT
    for name, halves in kept.adapters[0].tensors.items():
        for one, other in zip(halves, none.adapters[0].tensors[name], strict=True):
            assert relative_error(one, other) < 1e-3


@pytest.mark.parametrize("free", [10**9, 40_000], ids=["all", "some"])
def test_a_resumed_training_ends_with_the_same_bytes_whatever_memory_is_free_then(free, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "memory_budget", lambda device, sharing: free)
    whole = _fit(tmp_path / "whole", evaluations_per_epoch=1)
    ran = Ran(monkeypatch)
    _fit(tmp_path / "cut", evaluations_per_epoch=1)
    first = ran.groups[:]
    for checkpoint in (tmp_path / "cut").glob("checkpoint-12"):
        for file in sorted(checkpoint.rglob("*"), reverse=True):
            file.unlink()
        checkpoint.rmdir()
    ran.groups.clear()
    monkeypatch.setattr(loop, "memory_budget", lambda device, sharing: 10**9 - free)
    resumed = _fit(tmp_path / "cut", evaluations_per_epoch=1)
    assert ran.count > 0
    assert set(ran.groups) <= set(first)
    assert resumed.adapters[0].digest == whole.adapters[0].digest


@pytest.mark.parametrize("suffixes", [1, 5], ids=["one suffix", "more than are run side by side"])
def test_what_a_scorer_kept_can_be_trained_on(suffixes):
    """A comparison scores the base on its rows and then trains on them, with one store."""
    base, ids = toy_model("qwen3"), (20, 30, 40)
    bank = Bank(base, [random_adapter(base)], trainable=True)
    model, store = PackedModel(base, bank).train(), open_store(10**6, base, [ids])
    with torch.inference_mode():
        store.get([ids], model.run_prefixes)
    (kv,) = store.get([ids], model.run_prefixes).values()
    pairs = [Pair(0, 0, (5, 6, 7, 31 + n), (11, 12)) for n in range(suffixes)]
    model.label_logits([kv], pairs).sum().backward()
    assert all(half.norm() > 0 for pair in bank.gradients(0).values() for half in pair)
    assert store.hits == 1
