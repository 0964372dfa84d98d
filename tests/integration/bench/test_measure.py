"""Intervals against their definition, FLOP counts against torch's own, memory against an arm that must need more."""

import itertools
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from alora.bench.arms import PackedArm
from alora.bench.baselines import PeftArm, peft_model
from alora.bench.flops import FlopCount
from alora.bench.measure import Clock, Turn, by_round, measure, median_interval, seconds_of
from alora.bench.memory import MemoryCase, _weigh, extra_peak
from alora.bench.shapes import SHAPES, BaseShape, random_base
from alora.bench.workload import LABELS, draw_adapter, draw_workload
from alora.errors import BaseError
from tests.forked import call_forked

WIDE = BaseShape(vocab=97, hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, width=16)
TARGETS = tuple(WIDE.linears)
PREFIX, SUFFIX, RANK = 300, 6, 4


@pytest.mark.parametrize("count", range(1, 12))
def test_the_interval_covers_what_it_says(count):
    """By enumeration: each value lies above or below the median with equal chance."""
    interval = median_interval(range(count))
    depth = int(interval.low)
    below = [sum(side) for side in itertools.product((0, 1), repeat=count)]
    covered = sum(depth < number < count - depth for number in below) / 2**count
    assert interval.coverage == pytest.approx(covered)
    assert interval.high == count - 1 - depth
    assert count < 6 or interval.coverage >= 0.95


def test_a_narrower_interval_would_cover_too_little():
    interval = median_interval(range(20))
    assert interval.low > 0
    inner = median_interval(range(20), wanted=0.5)
    assert inner.low > interval.low
    assert inner.coverage < interval.coverage


def test_every_turn_runs_once_a_round_in_shuffled_order():
    ran = []
    turns = [Turn(name, lambda name=name: ran.append(name)) for name in "abcde"]
    samples = measure(turns, 6, 3, Clock(torch.device("cpu")))
    rounds = [ran[start : start + 5] for start in range(0, 30, 5)]
    assert all(sorted(names) == list("abcde") for names in rounds)
    assert len(set(map(tuple, rounds))) > 1
    assert [sample.arm for sample in samples] == ran
    assert len(seconds_of(samples, "a")) == len(by_round(samples, "a")) == 6
    again = measure(turns, 6, 3, Clock(torch.device("cpu")))
    assert [sample.arm for sample in again] == [sample.arm for sample in samples]


def _attention(query, key, *args, causal=False, products=2, **kwargs):
    (batch, heads, rows, width), columns = query, key[2]
    seen = rows * (rows + 1) // 2 if causal else rows * columns
    return 2 * products * batch * heads * width * seen


def _counted(arm) -> int:
    """Matrix products of one step as torch counts them, with CPU attention, which it does not know."""
    aten = torch.ops.aten

    def forward(query, key, value, dropout=0.0, causal=False, *rest, out_shape=None, **kwargs):
        return _attention(query, key, causal=causal)

    def backward(grad, query, key, value, out, lse, dropout=0.0, causal=False, *rest, out_shape=None, **kwargs):
        return _attention(query, key, causal=causal, products=5)

    known = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    arm.step()
    arm.clear()
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        arm.step()
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def wide_base():
    return random_base(WIDE, torch.device("cpu"), torch.float32, seed=0)


def test_full_sequence_flops_are_what_torch_counts(wide_base):
    adapter = draw_adapter(wide_base, RANK, TARGETS, seed=0)
    arm = PeftArm("peft", peft_model(wide_base, adapter.spec), adapter, draw_workload(WIDE, PREFIX, SUFFIX, 1, 0), 0)
    assert FlopCount(WIDE, RANK, TARGETS).full_sequence(PREFIX, SUFFIX, 1) == pytest.approx(_counted(arm), rel=0.01)


@pytest.mark.parametrize("policies", [1, 5])
def test_packed_flops_are_what_torch_counts(wide_base, policies, tmp_path):
    adapters = [draw_adapter(wide_base, RANK, TARGETS, seed=place) for place in range(policies)]
    arm = PackedArm("packed", wide_base, adapters, draw_workload(WIDE, PREFIX, SUFFIX, policies, 0), tmp_path)
    count = FlopCount(WIDE, RANK, TARGETS)
    paper = policies * count.packed(PREFIX, SUFFIX, len(LABELS), policies)
    assert paper == pytest.approx(_counted(arm), rel=0.02)
    arm.close()


def test_the_limit_is_what_many_policies_tend_to():
    count = FlopCount(SHAPES["27m"], 8, TARGETS)
    alone = count.full_sequence(2000, 16, 1)
    ratios = [alone / count.packed(2000, 16, 2, policies) for policies in (1, 10, 100, 10**9)]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(alone / count.suffix(2000, 16, 2), rel=1e-4)


def _case(arm: str, prefix: int, policies: int = 1, chunk: int = 4096, shape: str = "toy") -> MemoryCase:
    return MemoryCase(arm, shape, prefix, 8, policies, chunk, 4, TARGETS, "cpu", "float32", seed=0, threads=1)


def _weighed(*case, **more) -> float:
    return call_forked(_weigh, _case(*case, **more))


def test_the_split_needs_a_quarter_of_the_memory_and_no_more_with_more_policies():
    """Full-sequence training stores activations of the whole prompt; the split stores its keys and values, and one
    pass of suffixes. The control is a pass that takes all suffixes at once."""
    split = extra_peak(_case("packed", 400, shape="27m"))
    assert split <= 0.25 * _weighed("peft", 400, shape="27m")
    few, many = (_weighed("packed", 400, policies, chunk=64, shape="27m") for policies in (8, 32))
    assert many <= 1.1 * few
    assert _weighed("packed", 400, 32, shape="27m") > 1.5 * many


def test_memory_of_a_case_that_cannot_run_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BaseError, match=r"exit code 1.*bench\.memory=false"):
        extra_peak(_case("packed", 50))
