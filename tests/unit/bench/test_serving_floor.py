"""The floor: what it counts, and a ratio that is withheld because an arm came in below it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from alora.bench.flops import FlopCount
from alora.bench.serving import floor
from alora.bench.serving.floor import Floors, Machine
from alora.bench.shapes import SHAPES
from tests.unit.bench.serving_cases import LABELS, adapter_of, judged, machine, material, played, players

SHAPE = SHAPES["toy"]
COUNT = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))


def test_lora_reads_the_prefix_for_every_adapter_and_alora_once():
    floors = Floors(material(), machine(1e9, 1e15))  # arithmetic binds
    count = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
    assert floors.of("lora", 1000, 8) == pytest.approx(8 * floors.of("lora", 1000, 1))
    assert floors.of("alora", 1000, 8) == pytest.approx(
        (count.prefix(1000) + 8 * count.scored_suffix(1000, 5, 2)) / 1e9
    )
    assert Floors(material(), machine(2e9, 1e15)).of("lora", 1000, 8) == pytest.approx(floors.of("lora", 1000, 8) / 2)


def test_bytes_bind_where_arithmetic_is_free():
    """Weights once; of keys and values nobody knows how often they leave the processor's cache."""
    floors = Floors(material(), machine(1e18, 1e9))
    adapter = 4 * sum(a.numel() + b.numel() for a, b in material().adapters[0].tensors.values()) / 1e9
    assert floors.of("alora", 1000, 0) == pytest.approx(4 * SHAPE.parameters / 1e9)
    assert floors.of("alora", 1000, 9) - floors.of("alora", 2000, 8) == pytest.approx(adapter)
    assert floors.of("base", 1000, 9) == floors.of("base", 1000, 8)


def test_what_is_cached_is_not_counted():
    floors = Floors(material(), machine(1e9, 1e15))
    count = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
    assert floors.of("alora", 1000, 8, 1000) == pytest.approx(8 * count.scored_suffix(1000, 5, 2) / 1e9)
    half = count.prefix(1000) - count.prefix(500) + 8 * count.scored_suffix(1000, 5, 2)
    assert floors.of("alora", 1000, 8, 500) == pytest.approx(half / 1e9)
    assert floors.of("lora", 1000, 8, 1000, 1) == pytest.approx(8 * count.lora_prefill(1000, 1, 1000) / 1e9)
    assert floors.of("base", 1000, 8, 1000) > floors.of("alora", 1000, 8, 1000)  # it reads the policy's text
    for arm in ("lora", "alora", "base"):
        spared = [floors.of(arm, 1000, 8, cached) for cached in (0, 1, 500, 1000)]
        assert spared == sorted(spared, reverse=True)


def test_every_policy_counts_with_its_own_suffix():
    """The fault: the first policy's suffix stood for all, so that a fair arm seemed to be faster than its floor."""
    even, uneven = material(), material()
    uneven.suffixes = [(7,) * 50, *even.suffixes[1:]]
    count = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
    longer = count.scored_suffix(1000, 50, 2) - count.scored_suffix(1000, 5, 2)
    on = machine(1e9, 1e15)
    assert Floors(uneven, on).of("alora", 1000, 8) - Floors(even, on).of("alora", 1000, 8) == pytest.approx(
        longer / 1e9
    )


def test_every_adapter_counts_with_its_own_rank_targets_and_weights():
    own = material()
    own.adapters = [adapter_of(4, ("q_proj",)), adapter_of(16, ("q_proj", "down_proj"))]
    own.labels = [LABELS, (*LABELS, 13)]
    counts = FlopCount(SHAPE, 4, ("q_proj",)), FlopCount(SHAPE, 16, ("down_proj", "q_proj"))
    work = counts[0].scored_suffix(1000, 5, 2) + counts[1].scored_suffix(1000, 5, 3)
    assert Floors(own, machine(1e9, 1e15)).of("alora", 1000, 2, 1000) == pytest.approx(work / 1e9)
    sizes = [sum(a.numel() + b.numel() for a, b in adapter.tensors.values()) for adapter in own.adapters]
    bytes_of = [Floors(own, machine(1e18, 1e9)).of("alora", 1000, count) for count in (1, 2)]
    assert bytes_of == pytest.approx([4 * (SHAPE.parameters + sum(sizes[:count])) / 1e9 for count in (1, 2)])
    own.adapters = [adapter_of(4, ("q_proj",), layers=1)] * 2  # on some layers: counted as none, kind to the arm
    bare = FlopCount(SHAPE, 0, ())
    assert Floors(own, machine(1e9, 1e15)).of("lora", 1000, 1) == pytest.approx(bare.lora_prefill(1000, 5) / 1e9)


def test_a_prefill_is_the_sum_of_its_parts():
    count = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
    head = count.lora_prefill(0, 0)
    parts = [count.lora_prefill(400, 0) - head, count.lora_prefill(1000, 24, cached=400)]
    assert sum(parts) == count.lora_prefill(1000, 24)


def evaluated(on: Machine) -> dict[str, Any]:
    """A fair cell: aLoRA 1 s, standard LoRA 9 s, equal work and verdicts, a null arm that shows 1."""
    return judged(played("grid", players()), on)["cells"][0]["ratios"][0]


def test_a_fair_cell_gets_its_ratio():
    fair = evaluated(machine())
    assert fair["refused"] == []
    assert fair["ratio"]["median"] == pytest.approx(9.0)


def test_an_arm_below_its_floor_gets_none():
    """The fault: a machine that could not have done this work in that time."""
    impossible = evaluated(machine(1e5))
    assert impossible["ratio"] is None
    assert any("left work out" in reason for reason in impossible["refused"])


def test_the_rate_is_that_of_the_fastest_kernel_an_arm_may_use(monkeypatch):
    """The fault: vLLM's oneDNN was twice as fast as the matmul that the floor was measured by, so that aLoRA seemed to
    be faster than its arithmetic.
    """
    x_TD, w_DO = torch.randn(6, 5), torch.randn(5, 4)
    for multiply in floor.multiplications(x_TD, w_DO).values():
        made = multiply()
        assert torch.allclose(made.to_dense() if made.is_mkldnn else made, x_TD @ w_DO, atol=1e-6)
    assert len(floor.multiplications(x_TD, w_DO)) == 1 + torch.backends.mkldnn.is_available()
    seconds = {"slow": 4.0, "fast": 1.0, "copy": 2.0}
    monkeypatch.setattr(floor, "multiplications", lambda x_TD, w_DO: {"torch": "slow", "onednn": "fast"})
    monkeypatch.setattr(floor, "_best", lambda run, device, clock: seconds["copy" if callable(run) else run])
    toy = SimpleNamespace(model=SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32), shape=SHAPE)
    found = floor.measure_machine(cast(Any, toy), cast(Any, None))
    work = 2 * 2048 * 32 * 48
    assert found.kernels == {"torch": work / 4.0, "onednn": work / 1.0}
    assert found.flops == work / 1.0


@pytest.mark.parametrize(
    ("workload", "stage", "least"),
    [
        ("warm", 1, 3 * COUNT.lora_prefill(32, 5)),
        ("warm", 2, 3 * COUNT.lora_prefill(32, 1, 32)),
        ("conversation", 1, 3 * COUNT.lora_prefill(32, 5, 16)),
        ("pipeline", 1, COUNT.lora_prefill(32, 5)),
    ],
)
def test_lora_s_floor_counts_only_what_its_own_cache_may_hold(workload, stage, least):
    """The fault: behind a conversation that the base had read, standard LoRA was held to the floor of its suffixes
    alone, though the base's cache is of no use to it; so it could leave the conversation out.
    """
    told = []
    for seconds in (1.25 * least / 1e9, 0.5 * least / 1e9):
        arms = players()
        arms["lora"] = replace(arms["lora"], seconds=seconds)
        told.append(judged(played(workload, arms), machine(1e9, 1e15))["cells"][stage])
    assert told[0]["arms"]["lora"]["over_floor"] == pytest.approx(1.25, rel=1e-2)
    assert not any("lora took" in reason for reason in told[0]["ratios"][0]["refused"])
    assert any("lora took 0.50 times" in reason for reason in told[1]["ratios"][0]["refused"])


def test_an_arm_without_a_cache_is_held_to_the_floor_of_all_its_work():
    """The fault: PEFT's LoRA at the second turn was thought to have kept the first, so that it could leave that out."""
    told = []
    for least in (COUNT.lora_prefill(32, 5), COUNT.lora_prefill(32, 5, 16)):
        arms = players()
        arms["lora"] = replace(arms["lora"], seconds=3 * 1.25 * least / 1e9)
        told.append(judged(played("conversation", arms), machine(1e9, 1e15), without_cache=True)["cells"][1])
    assert told[0]["arms"]["lora"]["over_floor"] == pytest.approx(1.25, rel=1e-2)
    assert any("lora took" in reason for reason in told[1]["ratios"][0]["refused"])
