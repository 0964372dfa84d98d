"""Bases that alora refuses by name, and configs that make another base of the same weights."""

from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma3Config, LlamaConfig

from alora.base.config import _refuse_by_name
from alora.base.fingerprint import config_digest
from alora.base.load import choose_device, choose_dtype
from alora.errors import BaseError

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


LONG = {"rope_type": "longrope", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    "parameters", [DYNAMIC, LONG, {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default"}}]
)
def test_rope_that_depends_on_the_prompts_length(parameters):
    config = Gemma3Config(vision_config={"num_hidden_layers": 1}) if "full_attention" in parameters else LlamaConfig()
    config.get_text_config().rope_parameters = parameters
    with pytest.raises(BaseError, match=r"(dynamic|longrope) RoPE"):
        _refuse_by_name(config, "somewhere")


def test_rope_that_does_not():
    _refuse_by_name(LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4}), "somewhere")


def test_a_base_whose_quantization_is_an_object():
    config = LlamaConfig()
    config.quantization_config = SimpleNamespace(quant_method="gptq")
    with pytest.raises(BaseError):
        _refuse_by_name(config, "somewhere")


def test_where_and_in_what_a_base_runs_by_itself(monkeypatch):
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(BaseError, match=r"sees no GPU; use base\.device=cpu"):
        choose_device("cuda:0")


def test_the_config_counts_and_its_origin_does_not():
    def digest(**settings):
        return config_digest(LlamaConfig(hidden_size=64, **settings))

    assert digest(rope_parameters={"rope_type": "default", "rope_theta": 50.0}) != digest()
    assert digest(rms_norm_eps=1e-3) != digest()
    assert digest(dtype="bfloat16", name_or_path="elsewhere", attn_implementation="eager") == digest()
