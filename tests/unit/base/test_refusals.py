"""Bases that alora refuses by name, and configs that make another base of the same weights."""

import pytest
from transformers import LlamaConfig

from alora.base.fingerprint import _config_digest
from alora.base.load import _refuse_by_name
from alora.errors import BaseError

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    "parameters", [DYNAMIC, {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default"}}]
)
def test_rope_that_depends_on_the_prompts_length(parameters):
    config = LlamaConfig()
    config.rope_parameters = parameters
    with pytest.raises(BaseError, match="dynamic RoPE"):
        _refuse_by_name(config, "somewhere")


def test_rope_that_does_not():
    _refuse_by_name(LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4}), "somewhere")


def test_the_config_counts_and_its_origin_does_not():
    def digest(**settings):
        return _config_digest(LlamaConfig(hidden_size=64, **settings))

    assert digest(rope_parameters={"rope_type": "default", "rope_theta": 50.0}) != digest()
    assert digest(rms_norm_eps=1e-3) != digest()
    assert digest(dtype="bfloat16", name_or_path="elsewhere", attn_implementation="eager") == digest()
