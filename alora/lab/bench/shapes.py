"""Bases of random weights in a given shape: a benchmark of speed needs no download."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from alora.base.load import quantize_in_place


@dataclass(frozen=True)
class BaseShape:
    """A model's sizes. ``width`` is of one attention head; an embedding that is ``tied`` is the head, too."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    width: int
    family: str = "qwen3"  # or llama, which has no norm on queries and keys
    tied: bool = True

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """``(in, out)`` of each linear module of a layer."""
        hidden, wide = self.hidden, self.intermediate
        query, kv = self.heads * self.width, self.kv_heads * self.width
        return {
            "q_proj": (hidden, query), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (query, hidden),
            "gate_proj": (hidden, wide), "up_proj": (hidden, wide), "down_proj": (wide, hidden),
        }  # fmt: skip

    @property
    def parameters(self) -> int:
        """Without norms and biases, a ten-thousandth of them."""
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * sum(i * o for i, o in self.linears.values()) + tables

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.width * itemsize


SHAPES = {
    "toy": BaseShape(vocab=199, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, width=8),
    "mini": BaseShape(vocab=512, hidden=64, intermediate=96, layers=2, heads=2, kv_heads=1, width=32),  # vLLM runs it
    "27m": BaseShape(vocab=4096, hidden=512, intermediate=1536, layers=8, heads=8, kv_heads=4, width=64),
    "smollm2": BaseShape(49_152, 576, 1536, layers=30, heads=9, kv_heads=3, width=64, family="llama"),
    "qwen3_0_6b": BaseShape(vocab=151_936, hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, width=128),
    "qwen3_4b": BaseShape(vocab=151_936, hidden=2560, intermediate=9728, layers=36, heads=32, kv_heads=8, width=128),
}


def random_base(
    shape: BaseShape, device: torch.device, dtype: torch.dtype, seed: int, quantized: bool = False
) -> PreTrainedModel:
    """A frozen base of ``shape`` in eval mode with sdpa attention; the weights follow from ``seed`` alone.
    ``quantized`` packs them in NF4, as :mod:`alora.base.load` does. The base is built in ``dtype``: a cast of the whole
    model would round the rotary frequencies too, and vLLM, which reads the saved base, would run another model."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width, "max_position_embeddings": 40_960, "tie_word_embeddings": shape.tied,
        "attn_implementation": "sdpa", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    with device:  # drawn where it will live: billions of draws take minutes on a CPU
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.family, **sizes), dtype=dtype)
    if quantized:
        quantize_in_place(model, dtype, device)
    model.to(device=device)  # pyright: ignore[reportCallIssue, reportArgumentType] wrapped by transformers
    return model.eval().requires_grad_(False)


def shape_of(config: Any) -> BaseShape:
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return BaseShape(
        vocab=config.vocab_size, hidden=config.hidden_size, intermediate=config.intermediate_size,
        layers=config.num_hidden_layers, heads=config.num_attention_heads, kv_heads=config.num_key_value_heads,
        width=width, family=config.model_type, tied=bool(config.tie_word_embeddings),
    )  # fmt: skip


def base_mib(model: PreTrainedModel) -> float:
    """MiB of the base's weights, the scales of packed ones included."""
    states = [getattr(parameter, "quant_state", None) for parameter in model.parameters()]
    scales = sum(state.absmax.nbytes for state in states if state is not None)
    return (sum(parameter.nbytes for parameter in model.parameters()) + scales) / 2**20
