"""On a GPU every gradient is PEFT's, by flash attention's kernels and side by side: ``make gpu`` runs it."""

import copy
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)

from tests.integration.prefix.test_equals_peft import _battery, _mean_error, _ours, _theirs, _worst

DEVICE = torch.device("cuda")
FAMILIES: dict[str, Any] = {
    "qwen3": (Qwen3Config, {}),
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": 100}),
    "gemma3": (
        Gemma3TextConfig,
        {"sliding_window": 100, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}

pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="no GPU here: make gpu runs it on one"
)


def _base(family: str, head_dim: int, seed: int) -> PreTrainedModel:
    """Of bfloat16 weights, so that it is the same one in every precision."""
    torch.manual_seed(seed)
    config, more = FAMILIES[family]
    shape = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 3}
    shape |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": head_dim, "initializer_range": 0.06}
    shape |= {"attn_implementation": "sdpa", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = AutoModelForCausalLM.from_config(config(**shape, **more), dtype=torch.bfloat16)
    return model.eval().requires_grad_(False).to(DEVICE)


@pytest.mark.parametrize("most", [0, 3], ids=["merged", "side by side"])
@pytest.mark.parametrize("head_dim", [64, 72, 128, 256])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_peft_s_on_a_gpu(family, head_dim, most, monkeypatch):
    """Float64's are within what RMSNorm, float32 in transformers, rounds; no bfloat16 base is further from them than
    with PEFT. Of one base's rounding either may have the luck, so there are several."""
    monkeypatch.setattr("alora.prefix.passes.MOST_SUFFIXES", most)
    ours = theirs = 0.0
    for seed in range(3):
        half = _base(family, head_dim, seed)
        exact, single = (copy.deepcopy(half).to(dtype) for dtype in (torch.float64, torch.float32))
        exact_case, case = (_battery(half, dtype, (5, 700, 131), longer=20) for dtype in (torch.float64, torch.float32))
        truth = _theirs(exact, *exact_case)[1]
        if not seed:
            assert _worst(_ours(exact, *exact_case, torch.float64)[1], truth) < 1e-6
            assert _worst(_ours(single, *case, torch.float32)[1], truth) < 3e-5
        ours += _mean_error(_ours(half, *case, torch.float32)[1], truth)
        theirs += _mean_error(_theirs(half, *case)[1], truth)
    assert 0 < ours <= 1.2 * theirs
