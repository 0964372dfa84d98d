"""New weights in an old place: under one path, one name or one id, by hand or in place."""

import itertools
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from alora.errors import AdapterError
from alora.vllm_plugin import lora_ids
from alora.vllm_plugin.activation_source import engine_records
from alora.vllm_plugin.refusals import RefusedRequest
from tests.vllm import toys as store
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ALL_LINEAR, ToyAdapter, edit_config, write_adapter
from tests.vllm.toys import INVOCATION, filler, prompt

NUMBERS = itertools.count(150)  # LoRA ids that no other test uses


@pytest.fixture
def rewritable(toys):
    """An adapter folder of its own, and a way to give it new weights."""
    home = store.folder() / "rewritable"
    shutil.rmtree(home, ignore_errors=True)

    def write(seed: int, invocation: tuple[int, ...] = INVOCATION) -> str:
        fresh = write_adapter(home.with_name(f"fresh{seed}"), toys.base, invocation, seed=seed, targets=ALL_LINEAR)
        shutil.rmtree(home, ignore_errors=True)
        Path(fresh).rename(home)
        return str(home)

    return write


@pytest.mark.parametrize("invocation", [INVOCATION, ()], ids=["aLoRA", "plain"])
def test_new_weights_at_the_same_path_under_the_same_name_reuse_nothing(engine, rewritable, invocation):
    ids, shared = prompt(40, suffix=60), 32 if invocation else 0
    old = ToyAdapter("rewritten", next(NUMBERS), rewritable(71, invocation), invocation)
    before = engine.ask_one(ids, old)
    new = ToyAdapter(
        "rewritten", next(NUMBERS), rewritable(72, invocation), invocation
    )  # a server gives a new id on each load
    after = engine.ask_one(ids, new)
    assert after.cached_tokens == shared
    assert float((before.logprobs_V - after.logprobs_V).abs().max()) > 0.1


def test_weights_changed_under_a_loaded_adapter_are_refused(engine, rewritable):
    adapter = ToyAdapter("changed", next(NUMBERS), rewritable(73), INVOCATION)
    ids = prompt(40, suffix=60)
    before = engine.ask_one(ids, adapter)
    rewritable(74)
    with pytest.raises(AdapterError, match="changed after their weights were loaded"):
        engine.ask_one(ids, adapter)
    engine.core.add_lora(lora_request(adapter, in_place=True))
    after = engine.ask_one(ids, adapter)
    assert after.cached_tokens == 32
    assert float((before.logprobs_V - after.logprobs_V).abs().max()) > 0.1


def test_a_failed_reload_in_place_leaves_nothing_mixed(engine, rewritable, toys):
    """Old weights with the new files' activation and digest would poison the cache; no answer comes instead."""
    adapter = ToyAdapter("half", next(NUMBERS), rewritable(75), INVOCATION)
    ids = prompt(40, suffix=60)
    engine.ask_one(ids, adapter)
    home = rewritable(76)
    write_adapter(Path(home), toys.base, INVOCATION, seed=76, rank=32)  # more than the engine's max_lora_rank
    again = lora_request(adapter, in_place=True)
    with pytest.raises(ValueError, match="rank"):
        engine.core.add_lora(again)
    with pytest.raises(AdapterError, match="changed after their weights were loaded"):
        engine.ask_one(ids, adapter)
    rewritable(77)
    engine.core.add_lora(again)
    assert engine.ask_one(ids, adapter).cached_tokens == 32


@pytest.mark.parametrize("invocation", [INVOCATION, ()], ids=["aLoRA", "plain"])
def test_a_request_loads_nothing_in_place(engine, rewritable, invocation):
    """It is answered by what the workers hold, so it must not be hashed as something else."""
    adapter = ToyAdapter("by request", next(NUMBERS), rewritable(81, invocation), invocation)
    ids, shared = prompt(40, suffix=60), 32 if invocation else 0
    before = engine.ask_one(ids, adapter)
    assert engine.ask_one(ids, adapter, in_place=True).cached_tokens == 96, "the same weights: nothing to do"
    rewritable(82, invocation)
    with pytest.raises(AdapterError, match="load the adapter again first"):
        engine.ask_one(ids, adapter, in_place=True)
    engine.core.add_lora(lora_request(adapter, in_place=True))
    after = engine.ask_one(ids, adapter, in_place=True)
    assert after.cached_tokens == shared
    assert float((before.logprobs_V - after.logprobs_V).abs().max()) > 0.1


def in_place(engine, adapter: ToyAdapter) -> None:
    engine.core.add_lora(lora_request(adapter, in_place=True))


def removed_and_added(engine, adapter: ToyAdapter) -> None:
    engine.core.remove_lora(adapter.number)
    engine.core.add_lora(lora_request(adapter))


def removed(engine, adapter: ToyAdapter) -> None:
    """The next request loads what is there then."""
    engine.core.remove_lora(adapter.number)


@pytest.mark.parametrize("change", [in_place, removed_and_added, removed])
def test_new_weights_under_an_id_answer_for_themselves(engine, rewritable, change):
    """Workers that kept the weights by the users' ids would go on with the old ones."""
    adapter = ToyAdapter("again", next(NUMBERS), rewritable(97), INVOCATION)
    ids = prompt(40, suffix=60)
    old = engine.ask_one(ids, adapter)
    rewritable(98)
    change(engine, adapter)
    new = engine.ask_one(ids, adapter)
    alone = engine.ask_one(ids, ToyAdapter("alone", next(NUMBERS), adapter.path, INVOCATION))
    assert float((new.logprobs_V - alone.logprobs_V).abs().max()) < 1e-5
    assert float((new.logprobs_V - old.logprobs_V).abs().max()) > 0.1


def assert_warm_equals_cold(engine, ids: list[int], adapter: ToyAdapter, cached: int) -> None:
    warm = engine.ask_one(ids, adapter)
    engine.clear()
    cold = engine.ask_one(ids, adapter)
    assert (warm.cached_tokens, cold.cached_tokens) == (cached, 0)
    assert float((warm.logprobs_V - cold.logprobs_V).abs().max()) < 1e-5


@pytest.mark.parametrize("invocation", [INVOCATION, ()], ids=["aLoRA", "plain"])
@pytest.mark.parametrize("change", [in_place, removed_and_added, removed])
def test_a_running_request_ends_with_the_weights_it_began_with(engine, rewritable, change, invocation):
    adapter = ToyAdapter("running", next(NUMBERS), rewritable(83, invocation), invocation)
    ids = prompt(40, suffix=10)
    alone = engine.ask_one(ids, adapter, max_tokens=60)
    engine.clear()
    with engine.running(ids, adapter) as answer:
        rewritable(84, invocation)
        change(engine, adapter)
    assert answer == list(alone.token_ids)
    turn = ids + answer + filler(3)
    other = engine.ask_one(turn, adapter)
    assert other.cached_tokens == (32 if invocation else 0), "the new weights take nothing of the old ones"
    rewritable(83, invocation)
    change(engine, adapter)
    assert_warm_equals_cold(engine, turn, adapter, cached=96)


def test_what_was_accepted_is_loaded_whatever_the_files_are_by_then(engine, rewritable):
    adapter = ToyAdapter("lazy", next(NUMBERS), rewritable(85), INVOCATION)
    ids = prompt(40, suffix=10)
    alone = engine.ask_one(ids, adapter, max_tokens=60)
    engine.core.remove_lora(adapter.number)
    engine.clear()
    with engine.running(ids, adapter, steps=0) as answer:
        rewritable(86)
    assert answer == list(alone.token_ids)
    rewritable(85)
    in_place(engine, adapter)
    assert_warm_equals_cold(engine, ids + answer + filler(3), adapter, cached=96)


def test_an_aborted_request_leaves_no_copy_behind(engine, rewritable):
    records = engine_records(engine.core)
    adapter = ToyAdapter("aborted", next(NUMBERS), rewritable(90), INVOCATION)
    ids = prompt(40, suffix=10)
    with engine.running(ids, adapter):
        copy = Path(records.known(adapter.number).copy)
        engine.core.remove_lora(adapter.number)
        assert copy.is_dir(), "the request may load it again"
        engine.llm.llm_engine.step()
        engine.llm.llm_engine.abort_request(["running"])
    rewritable(91)
    engine.core.add_lora(lora_request(adapter))
    assert engine.ask_one(ids, adapter).cached_tokens == 32
    engine.core.remove_lora(adapter.number)
    assert not copy.exists()


def test_an_engine_knows_more_adapters_than_its_workers_hold(toys):
    """A guard asks for all of its adapters in turn: what is forgotten before its turn would be copied each time."""
    engine = SimpleNamespace(vllm_config=SimpleNamespace(lora_config=SimpleNamespace(max_cpu_loras=300)))
    records = engine_records(engine)
    record = records.read(toys["linear"].path)
    for number in range(1, 321):
        records.hold(number, record)
    assert records.known(1) is record


def test_copies_of_a_killed_engine_are_deleted_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive = lora_ids.Records()
    abandoned, starting, foreign = (tmp_path / name for name in ("alora-copies-1", "alora-copies-2", "others"))
    for folder in (abandoned / "copy", starting, foreign):
        folder.mkdir(parents=True)
    for folder in (abandoned, Path(alive.folder), foreign):
        os.utime(folder, (1, 1))
    after = lora_ids.Records()
    assert set(tmp_path.iterdir()) == {starting, foreign, Path(alive.folder), Path(after.folder)}


def test_every_file_that_makes_an_adapter_is_in_its_digest(rewritable, monkeypatch):
    home, records = rewritable(93), lora_ids.Records()
    seen = {records.read(home).digest}
    edit_config(home, lora_alpha=3)
    seen.add(records.read(home).digest)
    Path(home, "new_embeddings.safetensors").write_bytes(b"one")
    seen.add(records.read(home).digest)
    weights = Path(home, "adapter_model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    seen.add(records.read(home).digest)
    Path(home, "README.md").write_text("not a part of it")
    assert records.read(home).digest in seen
    assert len(seen) == 4


def test_an_engine_lists_and_pins_by_its_users_ids(engine, rewritable):
    adapter = ToyAdapter("pinned", next(NUMBERS), rewritable(92), INVOCATION)
    engine.core.add_lora(lora_request(adapter))
    old = engine_records(engine.core).number(adapter.number)
    rewritable(96)
    in_place(engine, adapter)
    assert old not in engine.core.model_executor.list_loras(), "the workers need not keep the old weights"
    assert adapter.number in engine.core.list_loras()
    assert max(engine.core.list_loras()) < 1000
    assert engine.core.pin_lora(adapter.number)
    in_place(engine, adapter)
    assert adapter.number in engine.core.list_loras(), "the same weights again are not removed"
    now = engine_records(engine.core).number(adapter.number)
    engine.core.remove_lora(adapter.number)
    assert adapter.number not in engine.core.list_loras()
    assert now not in engine.core.model_executor.list_loras()


def test_weights_of_two_ids_stay_loaded_until_both_are_gone(engine, rewritable, toys):
    first, second = (ToyAdapter(f"twin {n}", next(NUMBERS), rewritable(92), INVOCATION) for n in (1, 2))
    for adapter in (first, second):
        engine.core.add_lora(lora_request(adapter))
    engine.core.add_lora(lora_request(replace(first, path=toys["wide"].path), in_place=True))
    assert {first.number, second.number} <= engine.core.list_loras(), "the other id's weights were not replaced"
    engine.core.add_lora(lora_request(first, in_place=True))
    assert engine.core.remove_lora(first.number)
    assert engine.core.list_loras() & {first.number, second.number} == {second.number}
    number = engine_records(engine.core).number(second.number)
    engine.core.remove_lora(second.number)
    assert number not in engine.core.model_executor.list_loras()


def test_a_request_that_names_its_weights_gets_those_or_none(engine, rewritable, toys):
    """Whoever may load adapters can give its id and its name others; the guard asks so."""
    mine = ToyAdapter("mine", next(NUMBERS), rewritable(104), INVOCATION)
    ids, theirs = prompt(40, suffix=60), replace(mine, path=toys["wide"].path)
    before = engine.ask_one(ids, mine)
    digest = engine_records(engine.core).known(mine.number).digest

    def assert_as_before(answer):
        assert float((answer.logprobs_V - before.logprobs_V).abs().max()) < 1e-5

    engine.core.add_lora(lora_request(theirs, in_place=True))
    with pytest.raises(AdapterError, match="give every adapter an id of its own"):
        engine.ask_one(ids, mine)
    with pytest.raises(AdapterError, match="holds other weights than are asked for"):
        engine.ask_one(ids, theirs, weights=digest)
    assert_as_before(engine.ask_one(ids, mine, weights=digest))
    with pytest.raises(AdapterError, match="give every adapter an id of its own"):
        engine.ask_one(ids, mine)
    again = replace(theirs, number=next(NUMBERS))  # unloaded and loaded: the same name, another id
    for answer in engine.ask([ids, ids], [theirs, again]):
        assert float((answer.logprobs_V - before.logprobs_V).abs().max()) > 0.1
    in_place(engine, mine)
    rewritable(105)
    assert_as_before(engine.ask_one(ids, mine, weights=digest))
    in_place(engine, mine)
    with pytest.raises(AdapterError, match="holds other weights than are asked for"):
        engine.ask_one(ids, mine, weights=digest)


def test_a_request_that_names_its_weights_is_refused_where_nobody_can_tell(engine, tmp_path):
    """A plain LoRA that cannot be read here goes on as in stock vLLM, and might be anything."""
    unread = ToyAdapter("unread", next(NUMBERS), str(tmp_path / "nowhere"), ())
    with pytest.raises(AdapterError, match="nobody here can tell"):
        engine.ask_one(prompt(40), unread, weights="0" * 64)


@pytest.mark.parametrize("wrong", ["0" * 64, "of another", 5])
def test_a_digest_that_does_not_fit_is_refused_as_a_users_error(engine, toys, wrong):
    with pytest.raises(RefusedRequest, match=r"other weights than are asked for|not the digest of weights"):
        engine.ask_one(prompt(40), toys["linear"], weights=wrong)


@pytest.mark.parametrize("invocation", [INVOCATION, ()], ids=["aLoRA", "plain"])
def test_files_that_are_touched_or_gone_change_nothing(engine, rewritable, invocation):
    home = rewritable(87, invocation)
    adapter = ToyAdapter("kept", next(NUMBERS), home, invocation)
    ids = prompt(40, suffix=60)
    engine.ask_one(ids, adapter)
    os.utime(Path(home, "adapter_config.json"), (1e9, 1e9))
    assert engine.ask_one(ids, adapter).cached_tokens == 96
    assert engine_records(engine.core).known(adapter.number).unchanged(), "read again once, not with each request"
    shutil.rmtree(home)
    assert engine.ask_one(ids, adapter).cached_tokens == 96


def test_a_refused_request_keeps_no_weights_in_mind(engine, rewritable):
    """Nothing was loaded for it, so the folder may still be corrected."""
    adapter = ToyAdapter("corrected", next(NUMBERS), rewritable(88), INVOCATION)
    with pytest.raises(AdapterError, match="not in the prompt"):
        engine.ask_one(list(range(60, 100)), adapter)
    rewritable(89)
    assert engine.ask_one(prompt(40), adapter).cached_tokens == 0


@pytest.mark.parametrize("tags", [None, ["weights"]])
def test_adapters_are_loaded_again_after_a_sleep(engine, toys, reference, tags):
    """A sleep of level 2 discards the slots that hold them on a GPU; a CPU keeps all, so here they are overwritten."""
    ids, names = prompt(40), ("linear", "plain")
    for name in names:
        engine.ask_one(ids, toys[name])
    engine.llm.sleep(level=2)
    for module in engine.runner.model.modules():
        for tensor in (*getattr(module, "lora_a_stacked", ()), *getattr(module, "lora_b_stacked", ())):
            tensor.fill_(0.25)
    engine.llm.wake_up(tags)
    engine.llm.wake_up()
    for name in names:
        found = engine.ask_one(ids, toys[name])
        assert float((found.logprobs_V - reference.logprobs_V(ids, toys[name])).abs().max()) < 1e-4
