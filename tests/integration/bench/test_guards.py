"""Each guard of a benchmark, with a fault planted for it to find."""

import dataclasses

import pytest
import torch

from alora.bench import guards
from alora.bench.arms import PackedArm
from alora.bench.baselines import PeftArm, TrainerArm, TrlArm, peft_model
from alora.bench.cell import ratio_entry
from alora.bench.measure import Clock, Turn, measure, median_interval, paired_ratio, seconds_of
from alora.bench.shapes import SHAPES, random_base
from alora.bench.workload import draw_adapter, draw_workload

SHAPE = SHAPES["toy"]
TARGETS = tuple(SHAPE.linears)
PREFIX, SUFFIX, POLICIES = 40, 9, 3


@pytest.fixture(scope="module")
def base():
    return random_base(SHAPE, torch.device("cpu"), torch.float32, seed=0)


@pytest.fixture(scope="module")
def adapters(base):
    return [draw_adapter(base, 4, TARGETS, seed=100 * place) for place in range(POLICIES)]


@pytest.fixture
def workload():
    return draw_workload(SHAPE, PREFIX, SUFFIX, POLICIES, seed=0)


@pytest.fixture
def packed(base, adapters, workload, tmp_path):
    arm = PackedArm("packed", base, adapters, workload, tmp_path)
    yield arm
    arm.close()


def _peft(base, adapter, workload, policy=0):
    return PeftArm("peft", peft_model(base, adapter.spec), adapter, workload, policy)


class TestWork:
    def test_the_same_pairs_pass(self, base, adapters, workload, packed, tmp_path):
        model = peft_model(base, adapters[0].spec)
        for arm in (
            PeftArm("peft", model, adapters[0], workload, 0),
            TrainerArm("trainer", model, adapters[0], workload, tmp_path),
            TrlArm("trl", peft_model(base, adapters[0].spec), adapters[0], workload, tmp_path),
        ):
            assert guards.unequal_work(packed.work(), arm.work()) is None

    def test_truncation_is_found(self, base, adapters, workload, packed, tmp_path):
        """TRL's ``max_length`` at its default cuts a long prompt's end off, invocation and answer included."""
        length = PREFIX + SUFFIX + 1
        model = peft_model(base, adapters[0].spec)
        arm = TrlArm("trl", model, adapters[0], workload, tmp_path, max_length=length)
        assert guards.unequal_work(packed.work(), arm.work()) is None
        arm._inputs = {name: value[:, : length - 5] for name, value in arm._inputs.items()}
        assert "differ in length" in guards.unequal_work(packed.work(), arm.work())

    def test_other_tokens_are_found(self, base, adapters, packed):
        other = draw_workload(SHAPE, PREFIX, SUFFIX, POLICIES, seed=77)
        reason = guards.unequal_work(packed.work(), _peft(base, adapters[0], other).work())
        assert "other tokens or another answer" in reason

    def test_another_answer_is_found(self, base, adapters, workload, packed):
        flipped = dataclasses.replace(workload, labels=tuple(1 - label for label in workload.labels))
        assert guards.unequal_work(packed.work(), _peft(base, adapters[0], flipped).work())

    def test_a_pair_counted_twice_is_found(self, base, adapters, workload, packed, tmp_path):
        copies = dataclasses.replace(
            workload, suffixes=workload.suffixes[:1] * POLICIES, labels=workload.labels[:1] * POLICIES
        )
        arm = PackedArm("packed", base, adapters, copies, tmp_path)
        reason = guards.unequal_work(arm.work(), _peft(base, adapters[0], workload).work())
        arm.close()
        assert reason == "ours counts a pair twice"

    def test_no_work_is_found(self, packed):
        assert guards.unequal_work([], packed.work())
        assert guards.unequal_work(packed.work(), [])


class TestResults:
    @pytest.mark.parametrize("policy", range(POLICIES))
    def test_ours_agrees_with_peft(self, base, adapters, workload, packed, policy):
        theirs = _peft(base, adapters[policy], workload, policy).outcome()
        ours = packed.outcomes(range(POLICIES))[policy]
        assert guards.disagreement(ours, theirs) <= guards.TOLERANCE

    def test_trainers_agree_with_the_vocabulary_objective(self, base, adapters, tmp_path):
        one = draw_workload(SHAPE, PREFIX, SUFFIX, 1, seed=0)
        wide = PackedArm("wide", base, adapters[:1], one, tmp_path, vocabulary=True)
        ours = wide.outcomes([0])[0]
        wide.close()
        for kind in (TrainerArm, TrlArm):
            theirs = kind("other", peft_model(base, adapters[0].spec), adapters[0], one, tmp_path).outcome()
            assert guards.disagreement(ours, theirs) <= guards.TOLERANCE

    def test_another_adapter_is_found(self, base, adapters, workload, packed):
        arm = _peft(base, adapters[1], workload, policy=0)
        worst = guards.disagreement(packed.outcomes([0])[0], arm.outcome())
        assert worst > guards.TOLERANCE
        assert "more than rounding explains" in guards.unequal_results(worst, guards.TOLERANCE)

    def test_an_activation_one_token_late_is_found(self, base, adapters, workload, packed):
        arm = _peft(base, adapters[0], workload)
        arm._offsets = [arm._offsets[0] - 1]
        assert guards.disagreement(packed.outcomes([0])[0], arm.outcome()) > guards.TOLERANCE

    @pytest.mark.parametrize("scale", [1.0 + 1e-3, 0.0, float("nan")])
    def test_one_wrong_gradient_matrix_is_found(self, base, adapters, workload, packed, scale):
        theirs = _peft(base, adapters[0], workload).outcome()
        ours = packed.outcomes([0])[0]
        name = sorted(ours.gradients)[3]
        a, b = ours.gradients[name]
        broken = dataclasses.replace(ours, gradients={**ours.gradients, name: (a, scale * b)})
        assert guards.disagreement(broken, theirs) > guards.TOLERANCE

    def test_a_wrong_loss_is_found(self, packed):
        ours = packed.outcomes([0])[0]
        other = dataclasses.replace(ours, loss=ours.loss * 1.001)
        assert guards.disagreement(ours, ours) == 0
        assert guards.disagreement(other, ours) > guards.TOLERANCE

    def test_what_cannot_be_compared_is_infinitely_apart(self, packed):
        first, second = packed.outcomes([0, 1])
        fewer = dataclasses.replace(first, gradients=dict(list(first.gradients.items())[1:]))
        silent = dataclasses.replace(first, gradients={})
        wide = dataclasses.replace(first, objective="vocabulary")
        for other in (second, fewer, silent, wide):
            assert guards.disagreement(first, other) == float("inf")
        assert guards.disagreement(silent, silent) == float("inf")

    def test_gradients_that_are_all_zero_prove_nothing(self, packed):
        ours = packed.outcomes([0])[0]
        zero = {name: (0 * a, 0 * b) for name, (a, b) in ours.gradients.items()}
        dead = dataclasses.replace(ours, gradients=zero)
        assert guards.disagreement(dead, dead) == float("inf")


class _ToldClock(Clock):
    """A clock that is told by each run how long it took."""

    def __init__(self):
        super().__init__(torch.device("cpu"))

    def time(self, run):
        seconds = run()
        return seconds, seconds


class TestNullArm:
    def _null(self, ours, null):
        seconds = {"ours": iter(ours), "null": iter(null)}
        turns = [Turn(name, lambda name=name: next(seconds[name])) for name in seconds]
        samples = measure(turns, len(ours), 0, _ToldClock())
        return paired_ratio(seconds_of(samples, "null"), seconds_of(samples, "ours"))

    def test_noise_around_one_passes(self):
        ours = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.02]
        null = [1.02, 1.0, 1.0, 0.97, 1.0, 1.0, 0.99, 1.03]
        assert guards.biased_null(self._null(ours, null)) is None

    def test_a_slower_null_arm_is_found(self):
        ours = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.02]
        ratio = self._null(ours, [1.1 * value for value in ours])
        assert "null arm" in guards.biased_null(ratio)

    def test_an_interval_that_holds_anything_is_no_proof(self):
        ours = [1.0] * 8
        ratio = self._null(ours, [0.6, 1.0, 1.7, 0.5, 1.0, 2.0, 1.6, 0.7])
        assert ratio.contains(1.0)
        assert "too wide" in guards.biased_null(ratio)


def test_a_reason_leaves_no_number():
    interval = median_interval([2.0, 2.1, 2.2])
    assert ratio_entry("peft", 8, interval, [])["ratio"]["median"] == 2.1
    refused = ratio_entry("peft", 8, interval, ["the arms disagree"])
    assert refused["ratio"] is None
    assert refused["refused"] == ["the arms disagree"]
    assert "2.1" not in str(refused)
