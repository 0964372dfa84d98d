"""A cached prefix handed to the adapter: the bytes stay, the logits follow; and each way to break that is seen."""

import torch

from alora.identity.capture import capture
from alora.identity.certify import BOUNDS, hand_over
from tests.integration.identity.subjects import Stage
from tests.integration.identity.test_controls import staged

__all__ = ["staged"]
CONVERSATION = 2  # the longer of the two prompts: 40 tokens of prefix, far beyond the sliding window


def full_logits(staged: Stage, call) -> torch.Tensor:
    return capture(staged.models.alora, call, alora_offsets=call.offsets()).logits_BV[0]


def test_honest_handover_passes(staged: Stage):
    for call in staged.calls[:-1]:
        outcome = hand_over(staged.bare, staged.models.alora, call, full_logits(staged, call))
        assert outcome.passed
        assert outcome.prefix_elements > 0


def test_prefix_of_another_conversation_is_seen(staged: Stage):
    call, other = staged.calls[CONVERSATION], staged.calls[CONVERSATION - 1]
    assert staged.calls[CONVERSATION].name == "conversation 2"
    outcome = hand_over(staged.bare, staged.models.alora, other, full_logits(staged, call))
    assert outcome.prefix_changed == 0
    assert outcome.logits_error > outcome.bound


def test_adapter_that_is_off_after_the_handover_is_seen(staged: Stage):
    call = staged.calls[CONVERSATION]
    wanted = full_logits(staged, call)
    with staged.models.alora.disable_adapter():
        outcome = hand_over(staged.bare, staged.models.alora, call, wanted)
    assert outcome.logits_error > outcome.bound


def test_one_changed_bit_in_the_cache_is_seen(staged: Stage):
    call = staged.calls[CONVERSATION]
    wanted = full_logits(staged, call)

    def scribble(_module, _inputs, keywords):
        values = keywords["past_key_values"].layers[1].values
        integers = values.view(torch.int16 if values.dtype == torch.bfloat16 else torch.int32)
        integers[0, 0, call.activation_B[0] - 1, 0] ^= 1

    with staged.models.alora.get_base_model().register_forward_pre_hook(scribble, with_kwargs=True):
        outcome = hand_over(staged.bare, staged.models.alora, call, wanted)
    assert outcome.prefix_changed == 1
    assert not outcome.passed
    assert outcome.logits_error <= outcome.bound  # the logits alone would not have told


def test_bounds_are_tighter_than_the_adapter_effect(staged: Stage):
    """The bound must separate: what the adapter does to the logits is larger than what it allows."""
    call = staged.calls[CONVERSATION]
    adapted, base = full_logits(staged, call).double(), staged.bases[call.name].logits_BV[0].double()
    effect = float((adapted - base).abs().max() / adapted.abs().max())
    dtype = str(staged.bare.dtype).removeprefix("torch.")
    assert effect > 2 * BOUNDS[dtype]
