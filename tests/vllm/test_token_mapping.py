"""Which token gets which adapter, on vLLM's own V1 batch and V2 LoRA state, for every place of a step."""

from types import SimpleNamespace

import pytest

from alora.vllm_plugin import compat, stand_ins, token_mapping
from alora.vllm_plugin.carried_request import CarriedLoRARequest

ADAPTER, ACTIVATION, STEP = 7, 40, 16


def carried(activation: int) -> CarriedLoRARequest:
    return CarriedLoRARequest(
        lora_name="a", lora_int_id=ADAPTER, lora_path="/a", activation_index=activation, weights_digest="d"
    )


def wanted(computed: int, activation: int) -> list[int]:
    return [ADAPTER if computed + token >= activation else 0 for token in range(STEP)]


@pytest.mark.parametrize("activation", [0, ACTIVATION])
@pytest.mark.parametrize("computed", [0, 23, 24, 25, 39, 40, 41, 100])
def test_v1_adapts_from_the_activation_on(computed, activation):
    lora = carried(activation)
    batch, scheduled = stand_ins.v1_example(lora, STEP)
    batch.num_computed_tokens_cpu[0] = computed
    seen = []
    runner = SimpleNamespace(
        requests={"row": SimpleNamespace(lora_request=lora)},
        _set_active_loras=lambda prompts, tokens, *rest: seen.append([int(token) for token in tokens]),
    )
    compat.current(compat.V1_ACTIVE_LORAS)(runner, batch, scheduled)
    assert seen == [wanted(computed, activation)]


@pytest.mark.parametrize("activation", [0, ACTIVATION])
@pytest.mark.parametrize("computed", [0, 23, 24, 25, 39, 40, 41, 100])
def test_v2_adapts_from_the_activation_on(computed, activation):
    state, arguments = stand_ins.v2_example(carried(activation), computed, STEP)
    _, tokens, _ = compat.current(compat.V2_LORA_INPUTS)(state, *arguments)
    assert [int(token) for token in tokens] == wanted(computed, activation)


def test_v2_positions_are_the_schedulers():
    step = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="new", num_computed_tokens=64)],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["old"], num_computed_tokens=[80]),
    )
    state, _arguments = stand_ins.v2_example(carried(ACTIVATION), computed=0)
    runner = SimpleNamespace(lora_state=state)
    taken = []
    token_mapping.v2_positions_patch(lambda self, *rest: taken.append(rest))(runner, step, "batch", 3)
    assert taken == [(step, "batch", 3)]
    assert state._alora_computed == {"new": 64, "old": 80}


def test_v2_without_positions_raises_rather_than_guesses():
    state, arguments = stand_ins.v2_example(carried(ACTIVATION), computed=0)
    state._alora_computed = {"another row": 0}
    with pytest.raises(KeyError):
        compat.current(compat.V2_LORA_INPUTS)(state, *arguments)
    del state._alora_computed
    with pytest.raises(AttributeError):
        compat.current(compat.V2_LORA_INPUTS)(state, *arguments)


def test_rows_of_one_batch_do_not_touch_each_other():
    rows = [(carried(4), 0), (None, 9), (carried(4), 2), (carried(0), 0)]
    tokens = token_mapping.mask_tokens([7] * 6 + [0] * 3 + [8] * 4 + [9] * 2, rows, [6, 3, 4, 2])
    assert tokens == (0, 0, 0, 0, 7, 7, 0, 0, 0, 0, 0, 8, 8, 9, 9)


def test_prompt_logprobs_that_fail_leave_the_head_to_the_adapters():
    def fails():
        raise RuntimeError("out of memory")

    head = token_mapping.head_logits_patch(lambda self: "adapted")
    with pytest.raises(RuntimeError, match="out of memory"):
        token_mapping.prompt_logprobs_patch(fails)()
    assert head(SimpleNamespace()) == "adapted"
