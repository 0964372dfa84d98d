"""What may not be shared is not shared."""

import itertools
import shutil
from types import SimpleNamespace

import pytest
import torch

from alora.errors import AdapterError
from alora.vllm_plugin import activation_source, adapter_record, compat, refusals
from alora.vllm_plugin.carried_request import CarriedLoRARequest
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ToyAdapter, edit_config
from tests.vllm.toys import INVOCATION, filler, prompt

NUMBERS = itertools.count(50)  # LoRA ids that no other test uses


@pytest.mark.parametrize("first", [None, "plain", "linear"])
def test_plain_lora_shares_no_block(engine, toys, first):
    ids = prompt(70, suffix=40)
    engine.ask_one(ids, toys[first] if first else None)
    assert engine.ask_one(ids, toys["plain2"]).cached_tokens == 0
    assert engine.ask_one(ids, toys["plain2"]).cached_tokens == 96, "but its own, it does"


def test_after_the_activation_no_two_adapters_share(engine, toys):
    ids = prompt(40, suffix=100)
    engine.ask_one(ids, toys["linear"])
    assert engine.ask_one(ids, toys["wide"]).cached_tokens == 32
    assert engine.ask_one(ids).cached_tokens == 32
    assert engine.ask_one(ids, toys["linear"]).cached_tokens == 128, "its own blocks go on"


@pytest.mark.parametrize("name", [None, "linear", "plain"])
def test_cache_salt_separates_tenants(engine, toys, name):
    ids, adapter = prompt(70, suffix=40), toys[name] if name else None
    engine.ask_one(ids, adapter, salt="tenant one")
    assert engine.ask_one(ids, adapter, salt="tenant two").cached_tokens == 0
    assert engine.ask_one(ids, adapter).cached_tokens == 0
    assert engine.ask_one(ids, adapter, salt="tenant one").cached_tokens == 96


def test_a_salted_prefix_is_shared_within_its_tenant(engine, toys):
    ids = prompt(70)
    engine.ask_one(ids, salt="tenant one")
    assert engine.ask_one(ids, toys["linear"], salt="tenant one").cached_tokens == 64
    assert engine.ask_one(ids, toys["linear"], salt="tenant two").cached_tokens == 0


def test_history_written_under_an_adapter_is_not_reused_as_base(engine, toys, reference):
    adapter = toys["linear"]
    first = prompt(40, suffix=10)
    answer = engine.ask_one(first, adapter, max_tokens=60, logprobs=None)
    turn = first + list(answer.token_ids) + filler(3, 9)
    assert engine.ask_one(turn).cached_tokens == 32, "the base reuses only what came before the activation"
    engine.clear()
    engine.ask_one(first, adapter, max_tokens=60, logprobs=None)
    again = (
        turn + list(INVOCATION) + filler(4, 8)
    )  # the activation is later now, so the history is the base's to compute
    found = engine.ask_one(again, adapter)
    assert found.cached_tokens == 32
    assert float((found.logprobs_V - reference.logprobs_V(again, adapter)).abs().max()) < 1e-4


def test_one_name_under_two_ids_in_one_batch(engine, toys, reference):
    old = ToyAdapter("reloaded", next(NUMBERS), toys["linear"].path, INVOCATION)
    new = ToyAdapter("reloaded", next(NUMBERS), toys["wide"].path, INVOCATION)
    ids = prompt(40, suffix=60)
    answers = engine.ask([ids, ids], [old, new])
    for answer, name in zip(answers, ("linear", "wide"), strict=True):
        assert float((answer.logprobs_V - reference.logprobs_V(ids, toys[name])).abs().max()) < 1e-4


def test_one_id_for_two_adapters_is_refused(engine, toys):
    impostor = ToyAdapter("impostor", toys["linear"].number, toys["wide"].path, INVOCATION)
    engine.ask_one(prompt(40), toys["linear"])
    with pytest.raises(AdapterError, match="give every adapter an id of its own"):
        engine.ask_one(prompt(40), impostor)
    engine.core.remove_lora(toys["linear"].number)
    engine.ask_one(prompt(40), impostor)
    engine.core.remove_lora(toys["linear"].number)


def test_what_the_front_end_found_is_taken_for_its_own_request_alone(engine, toys):
    """Two requests are accepted before the engine core gets the first."""
    requests = [
        SimpleNamespace(
            lora_request=lora_request(toys["linear"]), prompt_token_ids=prompt(length), sampling_params=None
        )
        for length in (40, 50)
    ]
    for request in requests:
        activation_source._check_here(engine.core.vllm_config, request)
    preprocess = activation_source.preprocess_patch(lambda self, request: request.lora_request.activation_index)
    assert [preprocess(engine.core, request) for request in requests] == [40, 50]
    carried = [isinstance(request.lora_request, CarriedLoRARequest) for request in requests]
    assert carried == [False, False], "the caller's own requests stay as they are"


def test_what_the_front_end_found_is_taken_once(monkeypatch):
    """A request may be sent again, when its adapter is another one."""
    request, seen = SimpleNamespace(lora_request="theirs"), []
    core = SimpleNamespace(_alora_found=(request, "found before"))
    monkeypatch.setattr(activation_source, "carried_for", lambda *_: "found now")
    preprocess = activation_source.preprocess_patch(lambda self, own: seen.append(own.lora_request))
    for _ in range(2):
        preprocess(core, request)
    assert seen == ["found before", "found now"]


def test_of_two_engines_here_a_request_is_found_for_its_own(monkeypatch):
    engines = [SimpleNamespace(vllm_config=object()) for _ in range(2)]
    monkeypatch.setattr(activation_source, "_engines_here", [lambda one=one: one for one in engines])
    monkeypatch.setattr(activation_source, "carried_for", lambda engine, request: engine)
    for engine in reversed(engines):
        activation_source._check_here(engine.vllm_config, "request")
        assert engine._alora_found == ("request", engine)


@pytest.mark.parametrize("error", [AdapterError, OSError])
def test_what_cannot_be_read_is_the_requests_fault_and_not_the_servers(error, monkeypatch):
    def fails(*_):
        raise error("no space")

    monkeypatch.setattr(activation_source, "_check_here", fails)
    front_end = SimpleNamespace(vllm_config=None)
    process_inputs = activation_source.process_inputs_patch(lambda self: SimpleNamespace(lora_request="any"))
    with pytest.raises(refusals.RefusedRequest, match="no space"):
        process_inputs(front_end)


def _keys(start: int, end: int, activation: int | None, **extra):
    """The extra keys that vLLM makes for one block of a request, under an aLoRA or, with None, under the base."""
    carried = None
    if activation is not None:
        carried = CarriedLoRARequest(
            lora_name="a", lora_int_id=1, lora_path="/a", activation_index=activation, weights_digest="d"
        )
    request = SimpleNamespace(
        **{
            "lora_request": carried,
            "mm_features": [],
            "cache_salt": None,
            "prompt_embeds": None,
            "_prompt_embeds_per_block_hashes": {},
            **extra,
        }
    )
    return compat.current(compat.EXTRA_KEYS)(request, start, end, 0)


@pytest.mark.parametrize("kind", ["linear", "plain"])
def test_what_an_adapter_overflowed_to_reaches_nobody_else(engine, toys, tmp_path, monkeypatch, kind):
    """NaN stays in freed blocks, and attention reads a block whole, also the slots behind the prompt."""
    huge = shutil.copytree(toys[kind].path, tmp_path / "huge")
    edit_config(str(huge), lora_alpha=1e30)
    monkeypatch.setattr(adapter_record, "require_sound", lambda *_: None)  # which takes no aLoRA of this size
    adapter = ToyAdapter("huge", next(NUMBERS), str(huge), toys[kind].invocation)
    ids = prompt(40, suffix=10)
    wanted = engine.ask_one(ids).logprobs_V
    engine.clear()
    for seed in range(9):  # of 31 blocks each; the engine has 256
        long = prompt(8, suffix=980, seed=seed, invocation=adapter.invocation)
        assert engine.ask_one(long, adapter).logprobs_V.isnan().all()
    assert torch.equal(engine.ask_one(ids).logprobs_V, wanted)


def test_multimodal_and_prompt_embeds_keys_stay_in_every_block():
    image = SimpleNamespace(identifier="image", mm_position=SimpleNamespace(offset=4, length=40))
    embeds = torch.arange(128.0).reshape(64, 2)
    for extra in ({"mm_features": [image]}, {"prompt_embeds": embeds}, {"cache_salt": "tenant"}):
        first_base, _ = _keys(0, 32, None, **extra)
        assert first_base, "this block has a key of its own under the base"
        assert _keys(0, 32, 32, **extra)[0] == first_base
        adapted, _ = _keys(0, 32, 31, **extra)
        assert set(first_base) < set(adapted), "an adapted block keeps those keys and adds the adapter's"
    assert _keys(32, 64, 32, mm_features=[image])[1] == _keys(32, 64, None, mm_features=[image])[1]
