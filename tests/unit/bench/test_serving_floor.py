"""The floor: what it counts, and a ratio that is withheld because an arm came in below it."""

from typing import Any

import pytest

from alora.bench.flops import FlopCount
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
