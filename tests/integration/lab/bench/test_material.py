"""What the serving benchmark loads: every aLoRA and its twin, a standard LoRA of the very same weights."""

from dataclasses import replace

import pytest
import torch

from alora.adapter.folder import load_adapter
from alora.config.schema import BaseSettings, BenchSettings
from alora.lab.bench.harness import Clock
from alora.lab.bench.material import bench_base, random_adapter, random_material
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
