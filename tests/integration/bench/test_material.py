"""What the serving benchmark loads: every aLoRA and its twin, a standard LoRA of the very same weights."""

import torch

from alora.adapter.folder import load_adapter
from alora.bench.serving.material import random_material
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
