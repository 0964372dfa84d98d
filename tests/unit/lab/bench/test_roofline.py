"""The roofline: what it counts, and a ratio that is withheld because a system came in below it."""

from dataclasses import replace

import pytest

from alora.lab.bench.roofline import FlopCount, Roofline
from alora.lab.bench.shapes import SHAPES
from alora.prompt.render import Suffix
from tests.unit.lab.bench.cases import LABELS, judged, machine, material, played, players

SHAPE = SHAPES["toy"]
COUNT = FlopCount(SHAPE, 4, ("q_proj", "v_proj"))
ARITHMETIC = machine(1e9, 1e15)  # its bytes are free


def test_every_policy_counts_with_its_own_suffix():
    """The fault: the first policy's suffix stood for all, so that a fair system seemed faster than its roofline."""
    even, uneven = material(), material()
    uneven.suffixes = [Suffix((7,) + (8,) * 49, (7,), LABELS), *even.suffixes[1:]]
    longer = COUNT.scored_suffix(1000, 50, 2) - COUNT.scored_suffix(1000, 5, 2)
    found = [Roofline(made, ARITHMETIC).seconds("alora", 1000, 8) for made in (uneven, even)]
    assert found[0] - found[1] == pytest.approx(longer / 1e9)


@pytest.mark.parametrize(
    ("workload", "stage", "least"),
    [
        ("grid", 0, 3 * COUNT.lora_prefill(64, 5)),
        ("warm", 1, 3 * COUNT.lora_prefill(64, 5)),
        ("warm", 2, 3 * COUNT.lora_prefill(64, 1, 64)),
        ("conversation", 1, 3 * COUNT.lora_prefill(64, 5, 32)),
    ],
)
def test_lora_s_roofline_counts_only_what_its_own_cache_may_hold(workload, stage, least):
    """The fault: behind a conversation that the base had read, standard LoRA was compared with the roofline of its
    suffixes alone, though the base's cache is of no use to it; so it could leave the conversation out.
    """
    for factor, withheld in ((1.25, False), (0.5, True)):
        systems = players()
        systems["lora"] = replace(systems["lora"], seconds=factor * least / 1e9)
        cell = judged(played(workload, systems), ARITHMETIC).cells[stage]
        assert cell.roofline["lora"] == pytest.approx(least / 1e9)
        assert ("BELOW_ROOFLINE" in [one.code for one in cell.ratios[0].refused]) == withheld
