"""The floor: what it counts, and a ratio that is withheld because an arm came in below it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alora.bench.flops import FlopCount
from alora.bench.serving.evaluate import evaluate
from alora.bench.serving.floor import Floors, Machine
from alora.bench.serving.records import Cell
from alora.bench.serving.reference import References, probabilities
from alora.bench.shapes import SHAPES
from alora.config.schema import BenchSettings
from tests.unit.bench.serving_cases import burst, trials

PREFIX = tuple(range(100, 132))
SHAPE = SHAPES["toy"]


def material() -> Any:
    adapter = SimpleNamespace(
        spec=SimpleNamespace(rank=4, targets=("q_proj", "v_proj")),
        tensors={"q_proj": (torch.zeros(4, SHAPE.hidden), torch.zeros(SHAPE.hidden, 4))},
    )
    return SimpleNamespace(
        shape=SHAPE, adapters=[adapter] * 3, model=SimpleNamespace(dtype=torch.float32),
        suffixes=[(7,) * 5] * 3, policy_texts=[(7,) * 9] * 3, labels=[(11, 12)] * 3,
    )  # fmt: skip


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


def evaluated(machine: Machine) -> dict[str, Any]:
    """A fair cell: aLoRA 1 s, standard LoRA 9 s, equal work and verdicts, a null arm that shows 1."""
    cell = Cell("grid", {"length": 32, "adapters": 3})
    for arm, seconds in (("alora", 1.0), ("null", 1.0)):
        cell.trials += trials(arm, [seconds] * 9)
    cell.trials += trials("lora", [9.0] * 9, kind="lora", cached=[0, 0, 0])
    right = {(PREFIX, place): found for place, found in enumerate(probabilities(burst()))}
    bench: Any = SimpleNamespace(
        settings=BenchSettings(), arms=dict.fromkeys(("alora", "lora", "null")), cells=[cell], engine=None,
        conversation=lambda length: PREFIX, references=References(right, right, right, moved=0.5), tolerance=1e-3,
    )  # fmt: skip
    return evaluate(bench, Floors(material(), machine))["cells"][0]["ratios"][0]


def test_a_fair_cell_gets_its_ratio():
    fair = evaluated(Machine(flops=1e12, bytes=1e12))
    assert fair["refused"] == []
    assert fair["ratio"]["median"] == pytest.approx(9.0)


def test_an_arm_below_its_floor_gets_none():
    """The fault: a machine that could not have done this work in that time."""
    impossible = evaluated(Machine(flops=1e5, bytes=1e12))
    assert impossible["ratio"] is None
    assert any("left work out" in reason for reason in impossible["refused"])
