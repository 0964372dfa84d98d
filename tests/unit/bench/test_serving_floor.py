"""The floor: what it counts, and a ratio that is withheld because an arm came in below it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from alora.bench.flops import FlopCount
from alora.bench.serving import floor
from alora.bench.serving.floor import Floors, Machine
from alora.bench.shapes import SHAPES
from tests.unit.bench.serving_cases import judged, material, played, players

SHAPE = SHAPES["toy"]


def test_lora_reads_the_prefix_for_every_adapter_and_alora_once():
    floors = Floors(material(), Machine(flops=1e9, bytes=1e15))  # arithmetic binds
    count = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
    assert floors.of("lora", 1000, 8) == pytest.approx(8 * floors.of("lora", 1000, 1))
    assert floors.of("alora", 1000, 8) == pytest.approx(
        (count.prefix(1000) + 8 * count.scored_suffix(1000, 5, 2)) / 1e9
    )
    assert Floors(material(), Machine(2e9, 1e15)).of("lora", 1000, 8) == pytest.approx(floors.of("lora", 1000, 8) / 2)


def test_bytes_bind_where_arithmetic_is_free():
    floors = Floors(material(), Machine(flops=1e18, bytes=1e9))
    per_policy = 4 * 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.width * 1000 / 1e9
    more = floors.of("alora", 1000, 9) - floors.of("alora", 1000, 8)
    adapter = 4 * 2 * 4 * SHAPE.hidden / 1e9
    assert more == pytest.approx(per_policy + adapter)


def test_behind_a_prefix_only_the_suffix_counts_and_less_of_it_where_it_was_read_before():
    floors = Floors(material(), Machine(flops=1e9, bytes=1e15))
    count = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
    assert floors.behind("alora", 1000, 8) == pytest.approx(8 * count.scored_suffix(1000, 5, 2) / 1e9)
    assert floors.behind("lora", 1000, 8, suffix=1) == pytest.approx(8 * count.scored_suffix(1000, 1, 2) / 1e9)
    assert floors.behind("base", 1000, 8) > floors.behind("alora", 1000, 8)  # it reads the policy's text
    assert floors.behind("alora", 1000, 8) < floors.of("alora", 1000, 8)


def evaluated(machine: Machine) -> dict[str, Any]:
    """A fair cell: aLoRA 1 s, standard LoRA 9 s, equal work and verdicts, a null arm that shows 1."""
    return judged(played("grid", players()), machine)["cells"][0]["ratios"][0]


def test_a_fair_cell_gets_its_ratio():
    fair = evaluated(Machine(flops=1e12, bytes=1e12))
    assert fair["refused"] == []
    assert fair["ratio"]["median"] == pytest.approx(9.0)


def test_an_arm_below_its_floor_gets_none():
    """The fault: a machine that could not have done this work in that time."""
    impossible = evaluated(Machine(flops=1e5, bytes=1e12))
    assert impossible["ratio"] is None
    assert any("left work out" in reason for reason in impossible["refused"])


def test_the_rate_is_that_of_the_fastest_kernel_an_arm_may_use(monkeypatch):
    """The fault: vLLM's oneDNN was twice as fast as the matmul that the floor was measured by, so that aLoRA seemed to
    be faster than its arithmetic.
    """
    x_TD, w_DO = torch.randn(6, 5), torch.randn(5, 4)
    for multiply in floor.multiplications(x_TD, w_DO):
        made = multiply()
        assert torch.allclose(made.to_dense() if made.is_mkldnn else made, x_TD @ w_DO, atol=1e-6)
    assert len(floor.multiplications(x_TD, w_DO)) == 1 + torch.backends.mkldnn.is_available()
    seconds = {"slow": 4.0, "fast": 1.0, "copy": 2.0}
    monkeypatch.setattr(floor, "multiplications", lambda x_TD, w_DO: ["slow", "fast"])
    monkeypatch.setattr(floor, "_best", lambda run, device, clock: seconds["copy" if callable(run) else run])
    toy = SimpleNamespace(model=SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32), shape=SHAPE)
    found = floor.measure_machine(cast(Any, toy), cast(Any, None))
    assert found.flops == 2 * 2048 * 32 * 48 / seconds["fast"]
