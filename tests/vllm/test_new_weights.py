"""New weights in an old place: under one path, one name or one id, by hand or in place."""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from alora.errors import AdapterError
from tests.vllm import toys as store
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ALL_LINEAR, ToyAdapter, write_adapter
from tests.vllm.toys import INVOCATION, prompt

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


def test_a_request_loads_nothing_in_place(engine, rewritable):
    """It is answered by what the workers hold, so it must not be hashed as something else."""
    adapter = ToyAdapter("by request", next(NUMBERS), rewritable(81), INVOCATION)
    ids = prompt(40, suffix=60)
    before = engine.ask_one(ids, adapter)
    assert engine.ask_one(ids, adapter, in_place=True).cached_tokens == 96, "the same weights: nothing to do"
    rewritable(82)
    with pytest.raises(AdapterError, match="load the adapter again first"):
        engine.ask_one(ids, adapter, in_place=True)
    engine.core.add_lora(lora_request(adapter, in_place=True))
    after = engine.ask_one(ids, adapter, in_place=True)
    assert after.cached_tokens == 32
    assert float((before.logprobs_V - after.logprobs_V).abs().max()) > 0.1


def test_weights_in_place_wait_for_running_requests(engine, rewritable):
    adapter = ToyAdapter("running", next(NUMBERS), rewritable(83), INVOCATION)
    ids = prompt(40, suffix=10)
    with engine.running(ids, adapter):
        rewritable(84)
        with pytest.raises(AdapterError, match="while 1 request"):
            engine.core.add_lora(lora_request(adapter, in_place=True))
    engine.core.add_lora(lora_request(adapter, in_place=True))
    assert engine.ask_one(ids, adapter).cached_tokens == 32


@pytest.mark.parametrize("invocation", [INVOCATION, ()], ids=["aLoRA", "plain"])
def test_weights_that_come_back_in_place_reuse_nothing(engine, rewritable, invocation):
    """Whatever was computed meanwhile under their key may be another adapter's."""
    adapter = ToyAdapter("rolled back", next(NUMBERS), rewritable(85, invocation), invocation)
    ids, shared = prompt(40, suffix=60), 32 if invocation else 0
    first = engine.ask_one(ids, adapter)
    for seed in (86, 85):
        rewritable(seed, invocation)
        engine.core.add_lora(lora_request(adapter, in_place=True))
        again = engine.ask_one(ids, adapter)
        assert again.cached_tokens == shared
    assert float((first.logprobs_V - again.logprobs_V).abs().max()) < 1e-5


@pytest.mark.parametrize("invocation", [INVOCATION, ()], ids=["aLoRA", "plain"])
def test_files_that_are_touched_or_gone_change_nothing(engine, rewritable, invocation):
    home = rewritable(87, invocation)
    adapter = ToyAdapter("kept", next(NUMBERS), home, invocation)
    ids = prompt(40, suffix=60)
    engine.ask_one(ids, adapter)
    os.utime(Path(home, "adapter_config.json"), (1e9, 1e9))
    assert engine.ask_one(ids, adapter).cached_tokens == 96
    shutil.rmtree(home)
    assert engine.ask_one(ids, adapter).cached_tokens == 96


def test_a_refused_request_keeps_no_weights_in_mind(engine, rewritable):
    """Nothing was loaded for it, so the folder may still be corrected."""
    adapter = ToyAdapter("corrected", next(NUMBERS), rewritable(88), INVOCATION)
    with pytest.raises(AdapterError, match="not in the prompt"):
        engine.ask_one(list(range(60, 100)), adapter)
    rewritable(89)
    assert engine.ask_one(prompt(40), adapter).cached_tokens == 0
