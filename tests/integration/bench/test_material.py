"""What the serving benchmark loads: every aLoRA and its twin, a standard LoRA of the very same weights."""

from dataclasses import replace

import pytest
import torch

from alora.adapter.folder import load_adapter
from alora.bench.serving.arms import PeftLoraArm
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.material import _random_adapter, random_material
from alora.config.schema import BaseSettings, BenchSettings


def test_a_twin_is_the_same_weights_without_an_activation(tmp_path):
    settings = BenchSettings(shape="toy", rank=4)
    made = random_material(settings, BaseSettings(), torch.device("cpu"), torch.float32, 2, tmp_path)
    for place, (activated, plain) in enumerate(zip(made.folders["alora"], made.folders["lora"], strict=True)):
        one, other = load_adapter(activated), load_adapter(plain)
        assert (one.spec, other.spec) == (made.adapters[place].spec, made.twin(place).spec)
        assert one.spec.activated
        assert not other.spec.activated
        for name, (a_RD, b_OR) in made.adapters[place].tensors.items():
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
    settings = BenchSettings(shape="toy", rank=4)
    settings.serving.targets = ["q_proj", "v_proj"]
    made = random_material(settings, BaseSettings(), torch.device("cpu"), torch.float32, 2, tmp_path)
    other = _random_adapter(replace(made.adapters[0].spec, **how), made.model, 99, torch.float32)
    made = replace(made, adapters=(made.adapters[0], other))
    prefix, clock = made.conversation(40, 3), BenchClock(cpu=True)
    alone = [PeftLoraArm(made, clock).run(prefix, [place]).answers[0].scores for place in (0, 1)]
    both = PeftLoraArm(made, clock).run(prefix, [0, 1, 0]).answers
    assert [answer.scores for answer in both] == [*alone, alone[0]]
