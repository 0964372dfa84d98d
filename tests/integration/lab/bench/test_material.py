"""What the serving benchmark loads: every aLoRA and its twin, a standard LoRA of the very same weights."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from alora.adapter.folder import load_adapter
from alora.config.schema import BaseSettings, BenchSettings
from alora.lab.bench.harness import Clock
from alora.lab.bench.material import bench_base, random_adapter, random_material
from alora.lab.bench.shapes import SHAPES, random_base
from alora.lab.bench.systems import PeftLora

CPU = torch.device("cpu")


def made_of(settings, tmp_path, count=2):
    return random_material(settings, bench_base(settings, BaseSettings(), CPU, torch.float32), count, tmp_path)


def test_a_twin_is_the_same_weights_without_an_activation(tmp_path):
    made = made_of(BenchSettings(shape="toy", rank=4), tmp_path)
    for policy, (activated, plain) in enumerate(zip(made.folders["alora"], made.folders["lora"], strict=True)):
        one, other = load_adapter(activated), load_adapter(plain)
        assert (one.spec, other.spec) == (made.adapters[policy].spec, made.twin(policy).spec)
        assert one.spec.activated
        assert not other.spec.activated
        for name, (a_RD, b_OR) in made.adapters[policy].tensors.items():
            for read in (one.tensors[name], other.tensors[name]):
                assert torch.equal(read[0], a_RD)
                assert torch.equal(read[1], b_OR)
    first, second = (load_adapter(folder).tensors for folder in made.folders["alora"])
    assert all(not torch.equal(first[name][1], second[name][1]) for name in first)  # distinct ones


@pytest.mark.parametrize(
    "how", [{"rank": 8}, {"alpha": 1.0}, {"targets": ("q_proj",)}, {"targets": ("down_proj", "q_proj", "v_proj")}]
)
def test_peft_s_lora_answers_for_every_adapter_alone_and_behind_another_kind(how, tmp_path):
    """The fault: one PEFT model of the first adapter's rank, targets and scaling was made to answer for all."""
    made = made_of(BenchSettings(shape="toy", rank=4, targets=["q_proj", "v_proj"]), tmp_path)
    other = random_adapter(replace(made.adapters[0].spec, **how), made.base.model, 99, 0.5)
    made = replace(made, adapters=(made.adapters[0], other))
    prefix, clock = made.conversation(40, 3), Clock(CPU)
    alone = [PeftLora(made, clock).run(prefix, [policy]).results[0].scores for policy in (0, 1)]
    both = PeftLora(made, clock).run(prefix, [0, 1, 0]).results
    assert [answer.scores for answer in both] == [*alone, alone[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_random_base_is_the_model_that_is_loaded_from_its_folder(family, dtype, tmp_path):
    """The fault: a cast rounded the rotary frequencies too, and PEFT ran another model than vLLM."""
    ids_BT = torch.randint(20, 199, (1, 700), generator=torch.Generator().manual_seed(0))

    def alike(model):
        """Whether all buffers have the dtypes of its folder's model, and 700 tokens' logits the same bits."""
        model.save_pretrained(tmp_path / "base")
        other = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=dtype).eval()
        kinds = [{name: buffer.dtype for name, buffer in one.named_buffers()} for one in (model, other)]
        with torch.no_grad():
            return kinds[0] == kinds[1], torch.equal(model(input_ids=ids_BT).logits, other(input_ids=ids_BT).logits)

    shape = replace(SHAPES["toy"], family=family)
    base = random_base(shape, CPU, dtype, 0)
    assert alike(base) == alike(copy.deepcopy(base)) == (True, True)  # PEFT copies it
    right = dtype == torch.float32
    assert alike(random_base(shape, CPU, torch.float32, 0).to(dtype=dtype)) == (right, right)
