"""What a pass leaves behind in the base."""

import pytest

from alora.adapter.bank import Bank
from alora.errors import AdapterError
from alora.prefix.packed import PackedModel
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model


def test_a_prefix_between_two_passes_leaves_checkpointing_on():
    base = toy_model("qwen3")
    packed = PackedModel(base, Bank(base, [random_adapter(base)], trainable=True))
    packed.checkpoint_activations()
    packed.train()
    before = [module.training for module in base.modules()]
    assert any(before)
    packed.prefix_kv((5, 6, 7))
    assert [module.training for module in base.modules()] == before
    packed.eval()
    packed.prefix_kv((5, 6, 7))
    assert not any(module.training for module in base.modules())


def test_an_adapter_on_the_output_layer_is_refused_rather_than_left_out():
    base = toy_model("qwen3")
    bank = Bank(base, [random_adapter(base, targets=("q_proj", "lm_head"))])
    with pytest.raises(AdapterError, match="lm_head"):
        PackedModel(base, bank)
    bank.release()
    PackedModel(base, Bank(base, [random_adapter(base, targets=("q_proj",))]))
