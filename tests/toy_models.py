"""Random models of a few thousand parameters, in the shape of each base family that alora supports."""

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen3Config,
)

from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase

FAMILIES = ("qwen3", "llama", "gemma3", "granite")
WINDOW = 8  # shorter than the test prompts, so that the sliding window really slides


def toy_model(
    family: str,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    vocab: int = 199,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
) -> PreTrainedModel:
    """A frozen random model in eval mode with sdpa attention, built in its dtype as a loaded one is."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "attn_implementation": "sdpa",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "qwen3":
        config = Qwen3Config(**shape)
    elif family == "llama":
        config = LlamaConfig(**shape)
    elif family == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        config = Gemma3TextConfig(**shape, sliding_window=WINDOW, layer_types=layers, query_pre_attn_scalar=8)
    elif family == "granite":
        config = GraniteConfig(**shape, logits_scaling=4.0, attention_multiplier=0.3, residual_multiplier=0.7)
    else:
        raise ValueError(f"no toy of family {family!r}")
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def as_base(model: PreTrainedModel) -> LoadedBase:
    """A model as a base, for what needs no tokenizer of it."""
    return LoadedBase(model, None, Fingerprint("w", "t", "c"), "toy")  # pyright: ignore[reportArgumentType]


def toy_tokens(length: int, seed: int) -> tuple[int, ...]:
    """Random ids that are no token of an invocation or a label in the tests."""
    return tuple(torch.randint(20, 190, (length,), generator=torch.Generator().manual_seed(seed)).tolist())
