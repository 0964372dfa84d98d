"""A model class that the packed forward cannot run is refused by name and cause; one that it can run equals PEFT."""

import pytest
import torch
import transformers

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.errors import AdapterError, BaseError
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.prefix.supported import require_same_answers
from tests.integration.prefix.test_equals_peft import _ours, _theirs, _worst
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

SHAPE = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SHAPE | {"num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.15}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
PREFIX, SUFFIX, LABELS = (20, 31, 42, 53, 64), (5, 6, 7, 30), (11, 12)


def _base(name: str, dtype=torch.float32, **config):
    torch.manual_seed(0)
    shape = getattr(transformers, f"{name}Config")(**config)
    return transformers.AutoModelForCausalLM.from_config(shape, dtype=dtype).eval().requires_grad_(False)


def _packed(base, target: str) -> PackedModel:
    """With an adapter whose B is zero, which changes nothing."""
    linear = {name: module for name, module in base.named_modules() if name.rsplit(".", 1)[-1] == target}
    tensors = {
        name: (torch.randn(2, module.in_features), torch.zeros(module.out_features, 2))
        for name, module in linear.items()
    }
    assert tensors
    return PackedModel(base, Bank(base, [AdapterWeights(AdapterSpec(2, 2.0, (target,), SUFFIX[:3]), tensors)]))


NO_KV = r"a state other than keys and values in layers \[0"
HEADS = GROUPED | {"head_dim": 8}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
          "v_head_dim": 8, "first_k_dense_replace": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "target", "config", "cause"),
    [
        ("Bloom", "dense", {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
         r"layers \[0, 1\] do not call transformers' attention interface"),
        ("Lfm2", "q_proj", GROUPED | {"layer_types": ["conv", "full_attention"]}, NO_KV),
        ("Qwen3Next", "q_proj", HEADS | EXPERTS | LINEAR, NO_KV),
        ("FalconH1", "q_proj", HEADS | {"max_position_embeddings": 128}, NO_KV),
        ("Mamba", "in_proj", SHAPE | {"state_size": 4}, "keeps no keys and values"),
        ("DeepseekV3", "o_proj", GROUPED | LATENT, "keys of width 12 and values of width 8"),
        ("Gemma2", "q_proj", HEADS | {"attn_logit_softcapping": 2.0}, "uses softcap in its attention"),
        ("GptOss", "q_proj", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}, "uses s_aux in its attention"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_run_is_refused_by_name_and_cause(name, target, config, cause):
    with pytest.raises(BaseError, match=cause) as caught:
        _packed(_base(name, **config), target)
    assert name in str(caught.value)


@pytest.mark.parametrize("target", ["fc1", "fc2"])
def test_a_module_whose_tokens_lie_in_no_row_is_refused_before_anything_is_trained(target):
    config = SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}
    with pytest.raises(AdapterError, match=r"given a 2-dimensional input.* adapter\.targets"):
        _packed(_base("OPT", **config), target)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize(
    ("name", "target", "config"),
    [
        ("OPT", "q_proj", SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
        ("GPTNeoX", "dense", SHAPE | {"intermediate_size": 48}),
        ("Nemotron", "v_proj", GROUPED),  # it and StableLm drop keyword arguments before attention
        ("StableLm", "v_proj", GROUPED),
        ("Phi", "v_proj", GROUPED | {"embd_pdrop": 0.3, "resid_pdrop": 0.3}),  # its head has a bias
        ("Cohere", "v_proj", GROUPED | {"logit_scale": 0.3}),
        ("Gemma2", "v_proj", GROUPED | {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": 2.0}),
        ("Afmoe", "v_proj", GROUPED | EXPERTS | {"head_dim": 8, "num_dense_layers": 1}),  # views attention's output
    ],
)
def test_a_class_of_another_build_equals_peft(name, target, config, checkpointing):
    base = _base(name, **config)
    if getattr(base.get_output_embeddings(), "bias", None) is not None:
        torch.nn.init.normal_(base.get_output_embeddings().bias)
    adapters = [random_adapter(base, rank=2, seed=seed, targets=(target,), invocation=SUFFIX[:3]) for seed in (1, 2)]
    pairs = [Pair(0, 0, SUFFIX, LABELS), Pair(0, 1, (*SUFFIX, 44, 45), LABELS), Pair(1, 0, SUFFIX, LABELS)]
    prefixes = [PREFIX, (*PREFIX, 70, 71)]
    loss, gradients, _ = _ours(base, adapters, prefixes, pairs, torch.float32, checkpointing)
    their_loss, theirs = _theirs(base, adapters, prefixes, pairs)
    assert abs(loss - their_loss) <= 1e-5 * their_loss
    assert _worst(gradients, theirs) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [8, 4096])
def test_the_check_knows_no_class_by_name(width, dtype):
    """A class that is right otherwise, whose attention is not told the window that its mask has."""
    base = toy_model("gemma3", dtype)
    attentions = [module for module in base.modules() if getattr(module, "sliding_window", None)]
    for holder in (base.config, *attentions):
        holder.sliding_window = width
    told = [(module, module.sliding_window) for module in attentions]
    _packed(base, "q_proj")
    assert [(module, module.sliding_window) for module in attentions] == told
    assert base.config.sliding_window == width
    for module in attentions:
        module.sliding_window = None
    with pytest.raises(BaseError, match="its logits are"):
        _packed(base, "q_proj")


def test_other_logits_are_refused_and_a_full_device_is_no_matter_of_the_class():
    model, wanted, reached = toy_model("qwen3"), torch.arange(3.0), {0, 1, 2}
    require_same_answers(model, wanted, lambda: wanted + 1e-5, reached)
    with pytest.raises(BaseError, match=r"Qwen3ForCausalLM cannot run .*its logits are"):
        require_same_answers(model, wanted, lambda: 1.1 * wanted, reached)
    with pytest.raises(BaseError, match=r"its logits are \[nan"):
        require_same_answers(model, wanted, lambda: wanted * float("nan"), reached)

    def full():
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        require_same_answers(model, wanted, full, reached)
