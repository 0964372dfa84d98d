"""Every guard through ``evaluate``, in every workload: a planted fault withholds the ratio, with its code."""

import json
import math
from dataclasses import replace

import pytest
import torch

from alora.config.schema import BaseSettings, BenchSettings, Recipe, ServingBenchSettings
from alora.errors import ConfigError
from alora.lab.bench.record import record_json
from alora.lab.bench.run import run_bench
from alora.lab.bench.serving import for_this_machine
from alora.lab.bench.trials import AA, Run
from tests.unit.lab.bench.cases import Played, codes, judged, machine, played, players, right

WORKLOADS = ("grid", "warm", "conversation")
WRONG, NO_NUMBER, SILENT = (-3.0, -0.05), (math.nan, math.nan), (-0.69, -0.69)
OURS = ("alora", AA)


def change(*names, **how):
    """A fault: these systems behave otherwise. The A/A run does as ours does."""

    def plant(systems):
        for name in names:
            systems[name] = replace(systems[name], **how)

    return plant


def all_but_the_first(policy, number):
    return WRONG if policy else right(policy)


def one_round(policy, number):
    return WRONG if number == 3 and policy == 2 else right(policy)


def more_output(systems):
    systems["lora"] = Talking(**vars(systems["lora"]))


class Talking(Played):
    def trials(self, name, cell):
        found = []
        for trial in super().trials(name, cell):
            answers = [replace(a, piece=replace(a.piece, output_tokens=2)) for a in trial.run.results]
            found.append(replace(trial, run=replace(trial.run, results=tuple(answers))))
        return found


FAULTS = [
    pytest.param(change("lora", answers=lambda p, n: WRONG), "UNEQUAL_VERDICTS", id="LoRA wrong"),
    pytest.param(change("lora", answers=lambda p, n: NO_NUMBER), "UNEQUAL_VERDICTS", id="LoRA NaN"),
    pytest.param(change(*OURS, answers=lambda p, n: WRONG), "UNEQUAL_VERDICTS", id="aLoRA wrong"),
    pytest.param(change(*OURS, answers=lambda p, n: NO_NUMBER), "UNEQUAL_VERDICTS", id="aLoRA NaN"),
    pytest.param(change(*OURS, answers=lambda p, n: SILENT), "UNEQUAL_VERDICTS", id="adapter off"),
    pytest.param(change("lora", answers=all_but_the_first), "UNEQUAL_VERDICTS", id="one right LoRA"),
    pytest.param(change(*OURS, answers=all_but_the_first), "UNEQUAL_VERDICTS", id="one right aLoRA neither"),
    pytest.param(change("lora", answers=one_round), "UNSTEADY_VERDICTS", id="LoRA changes in one round"),
    pytest.param(change(*OURS, answers=one_round), "UNSTEADY_VERDICTS", id="aLoRA changes in one round"),
    pytest.param(change("lora", suffix=9), "UNEQUAL_WORK", id="LoRA longer prompts"),
    pytest.param(change(*OURS, suffix=2), "UNEQUAL_WORK", id="aLoRA shorter prompts"),
    pytest.param(change("lora", policies=(0, 1, 5)), "UNEQUAL_WORK", id="another policy"),
    pytest.param(change("lora", policies=(0, 1, 1)), "UNEQUAL_WORK", id="one policy twice"),
    pytest.param(more_output, "UNEQUAL_WORK", id="more tokens out"),
    pytest.param(change(*OURS, seconds=1e-9), "BELOW_ROOFLINE", id="aLoRA below its roofline"),
    pytest.param(change("lora", seconds=1e-9), "BELOW_ROOFLINE", id="LoRA below its roofline"),
    pytest.param(change(AA, seconds=1.25), "BIASED_AA", id="A/A run biased"),
    pytest.param(change(AA, drift=lambda n: (0.6, 1.7)[n % 2]), "NOISY_AA", id="A/A run too noisy"),
    pytest.param(change(AA, rounds=range(5)), "MISSING_ROUNDS", id="A/A run misses rounds"),
    pytest.param(lambda systems: systems.pop(AA), "NO_AA", id="no A/A run"),
    pytest.param(change("lora", rounds=range(5)), "MISSING_ROUNDS", id="LoRA misses rounds"),
    pytest.param(change("lora", rounds=range(1, 9)), "MISSING_ROUNDS", id="LoRA misses its first round"),
]  # fmt: skip


def assert_withheld(record, code):
    assert any(code in found for found in codes(record)), codes(record)
    assert all((ratio.ratio is None) == bool(ratio.refused) for cell in record.cells for ratio in cell.ratios)
    assert any(code in fault for fault in record.faults())
    assert json.loads(record_json(record))["benchmark"] == "serving"  # a fault must not keep the run from being written


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_fair_run_gets_its_ratios(workload):
    record = judged(played(workload, players()))
    ratios = [ratio for cell in record.cells for ratio in cell.ratios]
    assert codes(record) == [[]] * len(ratios)
    assert all(ratio.ratio.value == pytest.approx(9.0) for ratio in ratios)
    assert record.faults() == []
    compared = [one for cell in record.cells for one in cell.agreement if "PEFT" in one.against]
    assert {one.system for one in compared} == {"alora", AA, "lora"}
    assert all(one.checked > 0 for one in compared)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("plant", "code"), FAULTS)
def test_a_planted_fault_withholds_the_ratio(workload, plant, code):
    systems = players()
    plant(systems)
    record = judged(played(workload, systems), machine(1e9, 1e9))  # enough for a roofline of a millisecond
    assert_withheld(record, code)
    assert all(ratio.ratio is None for cell in record.cells for ratio in cell.ratios)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("system", ["alora", "lora"])
def test_a_cache_that_was_not_empty_withholds(workload, system):
    """On an empty cache a first request hits nothing, and standard LoRA nothing at all."""
    systems = players()
    if workload == "warm":
        change(system, first=16)(systems)
    else:
        change(system, hits=[32, 32, 32] if system == "alora" else [0, 16, 0])(systems)
    assert_withheld(judged(played(workload, systems)), "COLD_CACHE")


@pytest.mark.parametrize(("workload", "stage"), [("warm", 2), ("conversation", 1)])
@pytest.mark.parametrize("system", ["lora", "alora"])
def test_a_cache_that_was_emptied_between_two_stages_withholds(workload, stage, system):
    """The fault: a system, the baseline above all, reads again what it had read, and its ratio was printed."""
    for forgetful in (False, True):
        cells = played(workload, players())
        for number, trial in enumerate(cells[stage].trials if forgetful else ()):
            if trial.system == system:
                answers = [replace(answer, cached_tokens=0) for answer in trial.run.results]
                cells[stage].trials[number] = replace(trial, run=Run.of(trial.run.seconds, 1.0, answers))
        found = judged(cells).cells[stage].ratios[0].refused
        assert [one.code for one in found] == ["EMPTIED_CACHE"] * forgetful


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", ["alora", "lora"])
def test_adapters_of_one_kind_that_do_nothing_withhold(workload, kind):
    """The other kind's must not hide it in an average."""
    assert_withheld(judged(played(workload, players()), moved={kind: 1e-4}), "INERT_ADAPTERS")


@pytest.mark.parametrize("workload", ["grid", "conversation"])
def test_the_packed_scorer_checks_what_was_not_sampled(workload):
    systems = players() | {"packed": Played("alora")}
    change(*systems, policies=range(5))(systems)
    change(*OURS, answers=lambda policy, number: WRONG if policy == 3 else right(policy))(systems)
    record = judged(played(workload, systems))
    assert_withheld(record, "UNEQUAL_VERDICTS")
    assert any(one.against == "the packed scorer" and one.worst > 0.1 for c in record.cells for one in c.agreement)


@pytest.mark.parametrize("name", ["base", "reader"])
@pytest.mark.parametrize("suffix", [9, 4])
def test_other_prompts_are_the_nature_of_the_base_and_the_fault_of_any_other(name, suffix):
    """Also where a policy's text is as long as a suffix."""
    cells = played("grid", players() | {name: Played("base", suffix=suffix)})
    for number, trial in enumerate(cells[0].trials):
        if trial.system == name:
            answers = [replace(a, piece=replace(a.piece, digest=f"other {a.piece.digest}")) for a in trial.run.results]
            cells[0].trials[number] = replace(trial, run=Run.of(1.0, 1.0, answers))
    record = judged(cells)
    assert [one.code for one in record.cells[0].ratio(name).refused] == ["OTHER_PROMPTS"]
    assert record.faults() == []
    assert judged(played("grid", players() | {"lora": Played("lora", suffix=9)})).faults()


def test_a_part_of_the_burst_is_compared_piece_by_piece():
    systems = players()
    change("lora", policies=(1,), seconds=3.0)(systems)
    (cell,) = judged(played("grid", systems)).cells
    assert cell.ratio("lora").ratio.value == pytest.approx(9.0)
    assert (cell.mark("lora"), cell.mark("alora")) == ("~", "")
    assert cell.whole_ms("lora").value == pytest.approx(9000.0)
    assert cell.request_ms("lora", 95) is None  # a part of a burst waits less for its turn
    assert cell.request_ms("alora", 95).value == pytest.approx(1000.0)


def test_ours_must_do_the_same_in_every_round():
    cells = played("grid", players())
    at = next(n for n, trial in enumerate(cells[0].trials) if trial.system == "alora")
    fewer = cells[0].trials[at].run.results[:2]
    cells[0].trials[at] = replace(cells[0].trials[at], run=Run.of(1.0, 1.0, fewer))
    assert_withheld(judged(cells), "UNEQUAL_WORK")


def test_a_cell_that_was_stopped_costs_its_workload_no_ratio():
    """The fault: it has fewer rounds than the others, and so the whole workload had no A/A run."""
    four, one = ({name: replace(system, rounds=range(n)) for name, system in players().items()} for n in (4, 1))
    for fewer, wanted in ((four, [[], []]), (one, [["NO_AA"], ["NO_AA"]])):
        cells = [*played("grid", players()), *played("grid", fewer)]
        cells[1].at["policies"] = 2
        record = judged(cells)
        assert codes(record) == wanted
        assert [len(cell.of("lora")) for cell in record.cells] == [9, len(fewer["lora"].rounds)]


def test_systems_without_ours_are_refused_before_anything_is_measured():
    recipe = Recipe()
    recipe.bench.serving.systems = ["lora", "base"]
    with pytest.raises(ConfigError, match="nothing of ours"):
        run_bench(recipe.bench, BaseSettings(), torch.device("cpu"), torch.float32)


def test_a_system_of_ours_that_needs_vllm_does_not_count_without_it():
    serving = ServingBenchSettings(engine="scorer", systems=["lora", "alora"])
    with pytest.raises(ConfigError, match=r"leaves \['lora'\]"):
        for_this_machine(BenchSettings(serving=serving))
    serving.systems, serving.workloads = ["lora", "packed"], ["warm", "open_loop"]
    with pytest.raises(ConfigError, match="all need vLLM"):
        for_this_machine(BenchSettings(serving=serving))
