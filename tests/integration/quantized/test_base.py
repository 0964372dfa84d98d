"""A base loaded in NF4: the codes of a load and of a base in memory, its name, and what is refused."""

from dataclasses import replace

import pytest
import torch
from bitsandbytes.nn import Linear4bit

from alora.base.load import SETTINGS, load_base, quantize_in_place
from alora.client.engine import require_unquantized
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from tests.toy_recipe import toy_base_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy_base_folder(tmp_path_factory.mktemp("base"))


def load(folder, **settings):
    return load_base(BaseSettings(source=str(folder), device="cpu", **settings), progress=False)


def test_loaded_and_quantized_in_memory_are_the_same(folder):
    loaded, whole = load(folder, quantization="nf4"), load(folder)
    quantize_in_place(whole.model, torch.float32, torch.device("cpu"))
    codes = {
        name: module.weight.data for name, module in loaded.model.named_modules() if isinstance(module, Linear4bit)
    }
    again = {name: module.weight.data for name, module in whole.model.named_modules() if isinstance(module, Linear4bit)}
    assert codes.keys() == again.keys()
    assert len(codes) == 7 * 3
    assert all(code.dtype == torch.uint8 and torch.equal(code, again[name]) for name, code in codes.items())
    assert not isinstance(loaded.model.get_output_embeddings(), Linear4bit)
    for name in codes:  # scales in float32, as the fingerprint says
        states = [base.model.get_submodule(name).weight.quant_state for base in (loaded, whole)]
        assert not any(state.nested for state in states)
        assert torch.equal(*(state.absmax for state in states))
        assert states[0].absmax.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_computes_in_the_bases_dtype(folder, dtype):
    model = load(folder, quantization="nf4", dtype=dtype).model
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert {str(layer.compute_dtype) for layer in layers} == {f"torch.{dtype}"}
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)


def test_the_fingerprint_names_the_unquantized_base_and_how_it_was_quantized(folder):
    whole, packed = load(folder).fingerprint, load(folder, quantization="nf4").fingerprint
    assert replace(packed, quantization="none", quantization_settings="") == whole
    assert packed.quantized_as == f"nf4 ({SETTINGS})"
    assert packed.differences(whole) == ("quantization",)
    assert packed.differences(replace(packed, quantization_settings="otherwise")) == ("quantization_settings",)


def test_float64_is_refused(folder):
    with pytest.raises(BaseError, match=r"nf4 does not compute in float64; use base\.dtype=float32"):
        load(folder, quantization="nf4", dtype="float64")


def test_vllm_would_run_another_base(folder):
    require_unquantized(load(folder))
    with pytest.raises(BaseError, match=r"loaded in nf4.*alora recalibrate"):
        require_unquantized(load(folder, quantization="nf4"))
