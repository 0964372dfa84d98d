"""PEFT's own full-sequence aLoRA, one row at a time: what the packed forward must equal."""

import copy
import math
from collections.abc import Sequence

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from alora.activation import peft_offset
from alora.adapter.folder import AdapterSpec, AdapterWeights, new_adapter

ATTENTION_TARGETS = ("k_proj", "o_proj", "q_proj", "v_proj")
ALL_TARGETS = (*ATTENTION_TARGETS, "down_proj", "gate_proj", "up_proj")


def random_adapter(
    model: PreTrainedModel,
    rank: int = 4,
    seed: int = 0,
    targets: Sequence[str] = ALL_TARGETS,
    invocation: tuple[int, ...] | None = (5, 6, 7),
    dtype: torch.dtype = torch.float32,
    scaling: float = 2.0,
    rank_stabilised: bool = False,
) -> AdapterWeights:
    """An adapter whose B is not zero, so that it changes answers."""
    alpha = scaling * (math.sqrt(rank) if rank_stabilised else rank)
    spec = AdapterSpec(rank, alpha, tuple(sorted(targets)), invocation, rank_stabilised)
    fresh = new_adapter(spec, model, seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    tensors = {
        name: (a.to(dtype), (0.2 * torch.randn(b.shape, generator=generator)).to(dtype))
        for name, (a, b) in fresh.tensors.items()
    }
    return AdapterWeights(spec, tensors)


def peft_model(model: PreTrainedModel, adapter: AdapterWeights) -> PeftModel:
    """``adapter`` on a copy of ``model``, by PEFT."""
    spec = adapter.spec
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=list(spec.targets),
        use_rslora=spec.rank_stabilised,
        alora_invocation_tokens=list(spec.invocation_ids) if spec.invocation_ids else None,
    )
    copied = copy.deepcopy(model)
    copied.set_attn_implementation("sdpa")
    wrapped = get_peft_model(copied, config, autocast_adapter_dtype=False)
    modules = dict(wrapped.named_modules())
    for name, (a, b) in adapter.tensors.items():
        layer = modules[f"base_model.model.{name}"]
        layer.lora_A["default"].weight = nn.Parameter(a.clone())
        layer.lora_B["default"].weight = nn.Parameter(b.clone())
    return wrapped.eval()


def peft_label_logits(
    model: PeftModel, prefix_ids: Sequence[int], suffix_ids: Sequence[int], labels: Sequence[int]
) -> torch.Tensor:
    """Label logits ``[L]`` after the whole prompt."""
    ids = [*prefix_ids, *suffix_ids]
    extra = {}
    if model.peft_config["default"].alora_invocation_tokens:
        extra["alora_offsets"] = [peft_offset(len(ids), len(prefix_ids))]
    return model(input_ids=torch.tensor([ids], device=model.device), **extra).logits[0, -1, list(labels)]


def peft_gradients(model: PeftModel) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """``(dA, dB)`` per adapted module path of the base."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            pair = (module.lora_A["default"].weight.grad, module.lora_B["default"].weight.grad)
            found[name.removeprefix("base_model.model.")] = pair
    return found


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative Frobenius error."""
    return ((ours - theirs).norm() / theirs.norm()).item()


def adapter_distance(ours: AdapterWeights, theirs: AdapterWeights) -> float:
    """The largest relative error of all halves of two adapters of the same modules."""
    assert ours.tensors.keys() == theirs.tensors.keys()
    pairs = zip(ours.tensors.values(), theirs.tensors.values(), strict=True)
    return max(relative_error(o, t) for mine, other in pairs for o, t in zip(mine, other, strict=True))
