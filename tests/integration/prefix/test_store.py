"""A run with a prefix store equals a run without one bit for bit, and computes each prefix once."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, new_adapter
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair, PrefixKV
from alora.prefix.store import DiskStore, MemoryStore, _digest_of_arithmetic, open_store
from alora.training.examples import Example, Target
from alora.training.loop import fit
from tests.peft_reference import ALL_TARGETS, random_adapter
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


@pytest.mark.parametrize("suffixes", [1, 5], ids=["one suffix", "more than are run side by side"])
def test_what_a_scorer_kept_can_be_trained_on(suffixes):
    """A comparison scores the base on its rows and then trains on them, with one store."""
    base, store, ids = toy_model("qwen3"), MemoryStore(10**6), (20, 30, 40)
    bank = Bank(base, [random_adapter(base)], trainable=True)
    model = PackedModel(base, bank).train()
    with torch.inference_mode():
        store.get(ids, model.prefix_kv)
    kv = store.get(ids, model.prefix_kv)
    pairs = [Pair(0, 0, (5, 6, 7, 31 + n), (11, 12)) for n in range(suffixes)]
    model.label_logits([kv], pairs).sum().backward()
    assert all(half.norm() > 0 for pair in bank.gradients(0).values() for half in pair)
    assert store.hits == 1


def _size(make_store) -> int:
    """Of a prefix of three tokens; on disk it stays, as something that an earlier run left."""
    store = make_store(10**6)
    store.get((9, 9, 9), _kv)
    return 10**6 - store._budget


def test_the_budget_holds(make_store):
    store, calls = make_store(_size(make_store) + 1), []
    for _ in range(2):
        for ids in ((1, 2, 3), (4, 5, 6)):
            store.get(ids, lambda ids: calls.append(ids) or _kv(ids))
    assert calls == [(1, 2, 3), (4, 5, 6), (4, 5, 6)]


def test_a_damaged_file_is_computed_again(tmp_path):
    store = DiskStore(tmp_path, 10**6, CPU)
    store.get((1, 2), _kv)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="is damaged .* computed again"):
        assert torch.equal(store.get((1, 2), _kv).layers[0][0], _kv((1, 2)).layers[0][0])
    assert store.misses == 2
    assert store.get((1, 2), _kv).length == 2
    assert store.hits == 1


def _described(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as opened:
        return opened.metadata()


@pytest.mark.parametrize(
    "damage",
    ["one bit", "of another length", "of another prefix", "without its checksum", "a layer less", "of another dtype",
     "scalars", "vectors"],
)  # fmt: skip
def test_a_whole_file_of_other_content_is_computed_again(tmp_path, damage):
    """safetensors reads all of them without a word."""
    store = DiskStore(tmp_path, 10**6, CPU)
    store.get((1, 2), _kv)
    (file,) = tmp_path.glob("*.safetensors")
    if damage == "one bit":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif damage in ("of another length", "of another prefix"):
        store.get((1, 2, 3) if "length" in damage else (3, 4), _kv)
        (other,) = set(tmp_path.glob("*.safetensors")) - {file}
        file.write_bytes(other.read_bytes())
    elif damage == "without its checksum":
        save_file(load_file(file), file)
    else:
        state, described = load_file(file), _described(file)
        if damage == "a layer less":
            state = {name: state[name] for name in ("0.k", "0.v")}
        elif damage == "of another dtype":
            state = {name: tensor.view(torch.int32) for name, tensor in state.items()}  # the same bytes
        else:
            state = {name: tensor.flatten()[0 if damage == "scalars" else slice(1)] for name, tensor in state.items()}
        crc = zlib.crc32(b"".join(state[name].numpy().tobytes() for name in sorted(state)))
        save_file(state, file, described | {"crc32": str(crc)})
    with pytest.warns(UserWarning, match="is damaged .* computed again"):
        found = store.get((1, 2), _kv)
    wanted = [half for pair in _kv((1, 2)).layers for half in pair]
    halves = [half for pair in found.layers for half in pair]
    assert all(torch.equal(*both) for both in zip(halves, wanted, strict=True))


def test_other_arithmetic_has_a_folder_of_its_own(monkeypatch):
    base = LoadedBase(toy_model("qwen3"), None, Fingerprint("w", "t", "c"), "toy")  # pyright: ignore[reportArgumentType]
    own = _digest_of_arithmetic(base, CPU)
    assert own == _digest_of_arithmetic(base, CPU)
    for target, name, value in (
        (transformers, "__version__", "0"),
        (torch, "__version__", "0"),
        (torch, "get_float32_matmul_precision", lambda: "medium"),
        (torch, "get_num_threads", lambda: 64),
        (torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            assert _digest_of_arithmetic(base, CPU) != own, name


def test_what_earlier_runs_left_makes_room_and_what_this_run_uses_stays(tmp_path):
    DiskStore(tmp_path, 10**6, CPU).get((1, 2), _kv)
    (first,) = tmp_path.glob("*.safetensors")
    os.utime(first, (1, 1))  # the older of the two
    DiskStore(tmp_path, 10**6, CPU).get((3, 4), _kv)
    (second,) = set(tmp_path.glob("*.safetensors")) - {first}
    budget = first.stat().st_size + second.stat().st_size
    DiskStore(tmp_path, budget, CPU).get((5, 6), _kv)
    assert not first.exists()
    assert second.exists()
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    store = DiskStore(tmp_path, budget, CPU)
    assert store.get((3, 4), _kv).length == 2  # used by this run, so it stays
    store.get((7, 8), _kv)
    store.get((9, 10), _kv)
    assert second.exists()
    assert sum(file.stat().st_size for file in tmp_path.glob("*.safetensors")) <= budget


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_folders_of_other_versions_share_the_budget(tmp_path):
    """What one version left is gone, oldest first, before the next one's runs do without."""
    olds = DiskStore(tmp_path / "old", 10**6, CPU, among=tmp_path)
    for ids in ((1, 2), (3, 4)):
        olds.get(ids, _kv)
    first, second = (olds._file(ids) for ids in ((1, 2), (3, 4)))
    os.utime(first, (1, 1))
    budget = _bytes(tmp_path) + first.stat().st_size // 2
    store = DiskStore(tmp_path / "new", budget, CPU, among=tmp_path)
    store.get((5, 6), _kv)
    assert [first.exists(), second.exists()] == [False, True]
    store.get((7, 8), _kv)
    store.get((9, 1), _kv)
    assert not second.exists()
    assert 0 < _bytes(tmp_path) <= budget
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_a_smaller_budget_holds_from_the_start_and_other_files_are_left_alone(tmp_path):
    for ids in ((1, 2), (3, 4)):
        DiskStore(tmp_path / "old", 10**6, CPU, among=tmp_path).get(ids, _kv)
    model = tmp_path / "old/model.safetensors"
    model.write_bytes(b"not ours")
    DiskStore(tmp_path / "new", 10, CPU, among=tmp_path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [model]


def test_what_a_killed_run_was_writing_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = {"dead": gone.pid, "live": os.getppid(), "old": os.getppid()}
    files = {
        kind: tmp_path / "one" / f"{digit * 64}.{pid}.writing"
        for (kind, pid), digit in zip(names.items(), "abc", strict=True)
    }
    files["other"] = tmp_path / "one" / "thesis.1.writing"
    (tmp_path / "one").mkdir()
    for file in files.values():
        file.write_bytes(b"0" * 100)
    for kind in ("old", "other"):
        os.utime(files[kind], (1, 1))
    DiskStore(tmp_path / "two", 10**6, CPU, among=tmp_path)
    assert {kind for kind, file in files.items() if file.exists()} == {"live", "other"}


def test_a_spent_budget_is_told_with_the_one_that_would_do(make_store):
    size = _size(make_store)
    roomy, store = make_store(10**6), make_store(2 * size)
    roomy.get((9, 9, 9), _kv)
    assert roomy.shortfall() is None
    for _ in range(2):
        for first in range(1, 5):
            store.get((first, 2, 3), _kv)
    assert "kept 2 of 4 prefixes" in store.shortfall()
    enough = int(store.shortfall().rsplit(" ", 1)[1])
    assert enough == pytest.approx(4 * size, rel=0.5)


def test_training_tells_of_a_spent_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    size = sum(k.nbytes + v.nbytes for k, v in PackedModel.prefix_kv(_packed(), (20, 30, 40)).layers)
    for cache_bytes, told in ((3 * size, True), (10**6, False)):
        _fit(tmp_path / str(told), "memory", monkeypatch, progress=True, prefix_cache_bytes=cache_bytes)
        assert ("the prefix cache kept 3 of 12 prefixes" in capsys.readouterr().err) == told


def test_another_base_has_a_folder_of_its_own(tmp_path, monkeypatch):
    """The address of a prefix is the base's fingerprint, dtype and device, and the ids."""
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path))
    settings = TrainingSettings(prefix_cache="disk")
    for name, dtype in (("one", torch.float32), ("other", torch.float32), ("one", torch.float64)):
        base = LoadedBase(toy_model("qwen3", dtype), None, Fingerprint(name, "t", "c"), "toy")  # pyright: ignore[reportArgumentType]
        open_store(settings, base).get((1, 2), _kv)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == len({file.parent for file in files}) == 3
    assert len({file.name for file in files}) == 1


def test_the_passes_of_a_batch_share_their_prefixes_and_batches_do_not(tmp_path, monkeypatch):
    """Without a store each conversation runs once per batch, however many passes its policies take."""
    calls = []
    stock = PackedModel.prefix_kv
    monkeypatch.setattr(PackedModel, "prefix_kv", lambda self, ids: calls.append(tuple(ids)) or stock(self, ids))
    base = LoadedBase(toy_model("qwen3"), None, Fingerprint("w", "t", "c"), "toy")  # pyright: ignore[reportArgumentType]
    adapters = [random_adapter(base.model, seed=place) for place in range(5)]
    targets = tuple(Target(place, (5, 6, 7, 31), (11, 12), place % 2) for place in range(5))
    rows = [Example((20, 30 + n, 40 + n), targets) for n in range(2)]
    settings = TrainingSettings(
        max_steps=3, batch_size=2, prefix_cache="off", max_suffix_tokens=8, evaluations_per_epoch=1
    )
    fit(base, adapters, rows, rows[:1], settings, tmp_path, progress=False)
    steps = [ids for ids in calls if len(ids) == 3]
    evaluated = steps.count(rows[0].prefix_ids) - 3
    assert steps.count(rows[1].prefix_ids) == 3
    assert 1 <= evaluated <= 3


def _packed() -> PackedModel:
    base = toy_model("gemma3")
    return PackedModel(base, Bank(base, [random_adapter(base, seed=0)]))


def _fit(folder, cache, monkeypatch, progress=False, **more):
    calls = []
    stock = PackedModel.prefix_kv

    def counted(self, token_ids):
        calls.append(tuple(token_ids))
        return stock(self, token_ids)

    monkeypatch.setattr(PackedModel, "prefix_kv", counted)
    base = LoadedBase(toy_model("gemma3"), None, Fingerprint("w", "t", "c"), "toy")  # pyright: ignore[reportArgumentType]
    spec = AdapterSpec(4, 8.0, tuple(sorted(ALL_TARGETS)), (5, 6, 7))
    rows = [Example((20, 30 + n, 40 + n), (Target(0, (5, 6, 7, 31), (11, 12), n % 2),)) for n in range(12)]
    settings = TrainingSettings(epochs=3, batch_size=4, prefix_cache=cache, early_stopping_patience=0, **more)
    fitted = fit(base, [new_adapter(spec, base.model, 0)], rows[:8], rows[8:], settings, folder, progress=progress)
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
