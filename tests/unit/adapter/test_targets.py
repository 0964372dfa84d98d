"""Which layers an adapter is for; what PEFT takes for something else is refused before a run is paid for."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from alora.adapter.folder import save_adapter
from alora.adapter.targets import trainable_modules
from alora.errors import AdapterError
from alora.identity.certify import with_adapter
from tests.peft_reference import ALL_TARGETS, ATTENTION_TARGETS, random_adapter


@pytest.fixture(scope="module")
def mixture():
    """A class with fused experts, and with layers of their old names beside them."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
    config = Glm4MoeConfig(vocab_size=50, num_hidden_layers=2, first_k_dense_replace=1, **sizes, **heads)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("targets", [ALL_TARGETS, ["gate_proj"], ["q_proj", "down_proj"], ["all-linear"]])
def test_what_peft_takes_for_a_mixture_s_experts_is_no_target(mixture, targets):
    with pytest.raises(AdapterError, match=r"_proj of this base for its experts.* leave them out of adapter.targets"):
        trainable_modules(mixture, targets)


def test_the_attention_of_a_mixture_is_adapted(mixture):
    names = {name.rpartition(".")[2] for name in trainable_modules(mixture, ATTENTION_TARGETS)}
    assert names == {*ATTENTION_TARGETS}


def test_an_adapter_that_was_received_for_them_is_refused(mixture, tmp_path):
    for name, targets in (("all", ALL_TARGETS), ("attention", ATTENTION_TARGETS)):
        save_adapter(random_adapter(mixture, targets=targets), tmp_path / name, "base")
    with pytest.raises(AdapterError, match="for its experts"):
        with_adapter(mixture, tmp_path / "all")
    assert with_adapter(mixture, tmp_path / "attention").active_adapter == "default"
