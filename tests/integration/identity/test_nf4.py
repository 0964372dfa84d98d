"""A base in NF4: identity in its own dtype, and the caller's quantized weights left as they were."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen3Config, Qwen3ForCausalLM

from alora.adapter.folder import save_adapter
from alora.base.load import LoadedBase
from alora.config.schema import IdentitySettings
from alora.identity.certify import certify
from tests.integration.identity.subjects import FINGERPRINT, toy_prompts
from tests.peft_reference import random_adapter

BLOCK = 64  # bitsandbytes quantizes 64 weights together, so the toy must be at least that wide


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nf4_base(dtype: torch.dtype, tmp_path: Path):
    torch.manual_seed(0)
    wide = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=199,
            hidden_size=BLOCK,
            intermediate_size=BLOCK,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=128,
            initializer_range=0.15,
        )
    )
    wide.save_pretrained(tmp_path / "base")
    save_adapter(random_adapter(wide), tmp_path / "adapter", "toy")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    quantized = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=dtype, quantization_config=config, device_map="cpu"
    ).eval()
    stored = {name: parameter.clone() for name, parameter in quantized.named_parameters()}
    assert stored["model.layers.0.self_attn.k_proj.weight"].dtype == torch.uint8

    base = LoadedBase(quantized, None, replace(FINGERPRINT, quantization="nf4"), "toy nf4")  # type: ignore[arg-type]
    certificate = certify(base, tmp_path / "adapter", toy_prompts(), IdentitySettings())
    assert certificate.failures == ()
    assert [record.dtype for record in certificate.dtypes] == [str(dtype).removeprefix("torch.")]
    assert certificate.base.quantization == "nf4"
    assert all(torch.equal(parameter, stored[name]) for name, parameter in quantized.named_parameters())
