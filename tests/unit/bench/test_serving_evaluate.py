"""Every guard through ``evaluate``, in every workload: a planted fault withholds the ratio and is told as a fault."""

import json
import math
from dataclasses import replace

import pytest
import torch

from alora.bench.serving.draws import arrivals
from alora.bench.serving.report import faults, json_lines
from alora.bench.serving.run import _for_this_place, run_serving
from alora.config.schema import BaseSettings, BenchSettings, Recipe, ServingBenchSettings
from alora.config.validate import check_recipe
from alora.errors import ConfigError
from tests.unit.bench.serving_cases import Played, judged, machine, played, players, right

WORKLOADS = ("grid", "warm", "conversation", "pipeline")
SEVERAL = ("grid", "warm", "conversation")  # policies on one conversation
WRONG, NO_NUMBER, SILENT = (-3.0, -0.05), (math.nan, math.nan), (-0.69, -0.69)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Intervals of latencies are not what is looked at here."""
    monkeypatch.setattr("alora.bench.serving.statistics.RESAMPLES", 2)


def change(*names, **how):
    """A fault: these arms behave otherwise. The null arm does as ours does."""

    def plant(arms):
        for name in names:
            arms[name] = replace(arms[name], **how)

    return plant


OURS = ("alora", "null")


def all_but_the_first(place, number):
    return WRONG if place else right(place)


def one_round(place, number):
    return WRONG if number == 3 and place == 2 else right(place)


def first_round_missing(arms):
    arms["lora"] = replace(arms["lora"], rounds=range(1, 9))


ARMS = [
    pytest.param(change("lora", answers=lambda p, n: WRONG), "lora: ", "differ from PEFT's LoRA", id="LoRA wrong"),
    pytest.param(change("lora", answers=lambda p, n: NO_NUMBER), "lora: ", "differ from PEFT's LoRA", id="LoRA NaN"),
    pytest.param(change(*OURS, answers=lambda p, n: WRONG), "alora: ", "differ from PEFT's aLoRA", id="aLoRA wrong"),
    pytest.param(change(*OURS, answers=lambda p, n: NO_NUMBER), "alora: ", "differ from PEFT's", id="aLoRA NaN"),
    pytest.param(change(*OURS, answers=lambda p, n: SILENT), "alora: ", "differ from PEFT's", id="adapter off"),
    pytest.param(change("lora", suffix=9), "the prompts differ", "", id="LoRA longer prompts"),
    pytest.param(change(*OURS, suffix=2), "the prompts differ", "", id="aLoRA shorter prompts"),
    pytest.param(change("lora", scale=4.0), "", "counted 4 times", id="LoRA counted more than it ran"),
    pytest.param(change(*OURS, seconds=1e-9), "alora took", "left work out", id="aLoRA below its floor"),
    pytest.param(change("lora", seconds=1e-9), "lora took", "left work out", id="LoRA below its floor"),
    pytest.param(change("null", seconds=1.25), "the null arm", "in place of 1.0", id="null arm biased"),
    pytest.param(
        change("null", drift=lambda n: (0.6, 1.7)[n % 2]), "the null arm", "too wide to say", id="null arm too noisy"
    ),
    pytest.param(change("null", rounds=range(5)), "the null arm", "rounds are missing", id="null arm misses rounds"),
    pytest.param(lambda arms: arms.pop("null"), "there is no null arm", "", id="no null arm"),
    pytest.param(change("lora", rounds=range(5)), "lora was", "rounds are missing", id="LoRA misses rounds"),
    pytest.param(first_round_missing, "lora was", "rounds are missing", id="LoRA misses its first round"),
]


def reasons_of(results):
    """Reasons of every compared cell, each of which must be withheld."""
    found = [entry for cell in results["cells"] for entry in cell["ratios"]]
    assert found
    return [entry["refused"] for entry in found if entry["ratio"] is None]


def assert_told(results, begins, holds):
    told = [[r for r in reasons if r.startswith(begins) and holds in r] for reasons in reasons_of(results)]
    assert any(told), [reasons_of(results)]
    assert any(holds in fault and begins in fault for fault in faults(results))
    assert json.loads(json_lines(results))["ours"] == "alora"  # a fault must not keep the run from being written


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_fair_run_gets_its_ratios(workload):
    results = judged(played(workload, players()), slots=6)
    entries = [entry for cell in results["cells"] for entry in cell["ratios"]]
    assert [entry["refused"] for entry in entries] == [[]] * len(entries)
    assert all(entry["ratio"]["median"] == pytest.approx(9.0) for entry in entries)
    assert faults(results) == []
    compared = [entry for cell in results["cells"] for entry in cell["agreement"] if "PEFT" in entry["against"]]
    assert {entry["arm"] for entry in compared} == {"alora", "null", "lora"}
    assert all(entry["checked"] > 0 for entry in compared)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("plant", "begins", "holds"), ARMS)
def test_a_planted_fault_withholds_the_ratio(workload, plant, begins, holds):
    arms = players()
    plant(arms)
    slow = machine(1e9, 1e9)  # enough for a floor of a millisecond
    results = judged(played(workload, arms), slow, slots=6)
    assert_told(results, begins, holds)
    assert len(reasons_of(results)) == sum(len(cell["ratios"]) for cell in results["cells"])


@pytest.mark.parametrize("workload", SEVERAL)
@pytest.mark.parametrize(("arms", "begins"), [(("lora",), "lora: "), (OURS, "alora: ")])
@pytest.mark.parametrize(
    ("answers", "told"),
    [(all_but_the_first, "differ from PEFT's"), (one_round, "round to round")],
    ids=["one right policy does not stand for the others", "an answer that changes in one round"],
)
def test_answers_that_are_wrong_in_part_are_told(workload, arms, begins, answers, told):
    playing = players()
    change(*arms, answers=answers)(playing)
    assert_told(judged(played(workload, playing)), begins, told)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("arm", ["alora", "lora"])
def test_a_cache_that_was_not_empty_is_told(workload, arm):
    """On an empty cache a first request hits nothing, and standard LoRA nothing at all."""
    playing = players()
    if workload in ("grid", "conversation"):
        change(arm, hits=[32, 32, 32] if arm == "alora" else [0, 16, 0])(playing)
    else:
        change(arm, first=16)(playing)
    assert_told(judged(played(workload, playing)), "the cache was not empty", "")


@pytest.mark.parametrize("workload", ["warm", "pipeline"])
def test_a_stage_that_was_not_measured_is_told(workload):
    cells = played(workload, players())[1:]
    assert_told(judged(cells), "", "nobody knows what the cache held")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_too_few_slots_are_told(workload):
    slots = 1 if workload == "pipeline" else 5
    assert_told(judged(played(workload, players()), slots=slots), "", "wait for their weights")


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", ["alora", "lora"])
def test_adapters_of_one_kind_that_do_nothing_are_told(workload, kind):
    """The other kind's must not hide it in an average."""
    assert_told(judged(played(workload, players()), moved={kind: 1e-4}), f"{kind}: ", "prove nothing")


@pytest.mark.parametrize("workload", ["grid", "conversation"])
def test_the_packed_scorer_checks_what_was_not_sampled(workload):
    arms = players() | {"packed": Played("alora")}
    change(*OURS, answers=lambda place, number: WRONG if place == 2 else right(place))(arms)
    assert_told(judged(played(workload, arms)), "alora: ", "the packed scorer")


def test_other_prompts_are_the_base_arms_nature_and_any_other_arms_fault():
    arms = players() | {"base": Played("base", suffix=9)}
    results = judged(played("grid", arms))
    (entry,) = (entry for entry in results["cells"][0]["ratios"] if entry["baseline"] == "base")
    assert "the prompts differ" in entry["refused"][0]
    assert faults(results) == []
    arms["lora"] = replace(arms["lora"], suffix=9)
    assert len(faults(judged(played("grid", arms)))) == 1


def test_an_arm_without_a_reference_of_its_own_is_withheld():
    """What only repeats itself has been compared with nothing."""
    cells = played("pipeline", players())
    for cell in cells[:1]:
        cell.trials = [trial for trial in cell.trials if trial.arm != "lora"]
    assert_told(judged(cells), "lora: ", "no verdict was compared")


def test_the_null_arm_counts_rounds_and_not_cells():
    """Two cells of a round share what the machine did in it."""
    arms = {name: replace(arm, rounds=range(3)) for name, arm in players().items()}
    arms["null"] = replace(arms["null"], drift=lambda n: (0.9, 1.0, 1.2)[n])
    null = judged(played("conversation", arms))["null"]["conversation"]
    assert (null["rounds"], null["coverage"]) == (3, 0.99)
    assert null["median"] == pytest.approx((0.9 * 1.0 * 1.2) ** (1 / 3))
    assert null["low"] < 0.5 < 2 < null["high"]


def test_a_cell_that_was_stopped_costs_its_workload_no_ratio():
    """The fault: it has fewer rounds than the others, and so the whole workload had no null arm."""
    arms = players() | {name: replace(arm, rounds=range(4)) for name, arm in players().items()}
    cells = [*played("grid", players()), *played("grid", arms)]
    cells[1].at = {**cells[1].at, "adapters": 2}
    results = judged(cells)
    assert results["null"]["grid"]["rounds"] == 4
    assert [entry["refused"] for cell in results["cells"] for entry in cell["ratios"]] == [[], []]
    one = {name: replace(arm, rounds=range(1)) for name, arm in players().items()}
    assert_told(judged([*played("grid", players()), *played("grid", one)]), "there is no null arm of two rounds", "")


def test_ours_that_does_not_run_a_workload_has_no_ratio_there():
    arms = {name: arm for name, arm in players().items() if name != "alora"}
    cells = [*played("pipeline", arms), *played("grid", players() | {"packed": Played("alora")})]
    for cell in cells[3:]:
        cell.trials = [trial for trial in cell.trials if trial.arm != "alora"]
    results = judged(cells)
    assert results["ours"] == "packed"
    assert results["cells"][1]["ratios"][0]["refused"][0] == "packed does not run this workload"


@pytest.mark.parametrize("arms", [["lora"], ["base"], ["lora", "base"]])
def test_arms_without_ours_are_refused_before_anything_is_measured(arms):
    recipe = Recipe()
    recipe.bench.serving.arms = arms
    with pytest.raises(ConfigError, match="add alora or packed"):
        check_recipe(recipe, "bench")
    with pytest.raises(ConfigError, match="nothing of ours"):
        run_serving(recipe.bench, BaseSettings(), torch.device("cpu"), torch.float32)


def test_a_cpu_is_not_asked_for_where_vllm_would_take_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="vLLM would take the GPU"):
        run_serving(
            BenchSettings(serving=ServingBenchSettings(engine="vllm")),
            BaseSettings(),
            torch.device("cpu"),
            torch.float32,
        )


def test_an_arm_of_ours_that_needs_vllm_does_not_count_without_it():
    serving = ServingBenchSettings(engine="scorer", arms=["lora", "alora"])
    with pytest.raises(ConfigError, match=r"leaves \['lora'\] on bench.serving.engine=scorer"):
        run_serving(BenchSettings(serving=serving), BaseSettings(), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("workload", "stage"), [("warm", 2), ("conversation", 1)])
@pytest.mark.parametrize("arm", ["lora", "alora"])
def test_a_cache_that_was_emptied_between_two_stages_is_told(workload, stage, arm):
    """The fault: an arm, the baseline above all, reads again what it had read, and its ratio was told."""
    told = []
    for forgetful in (False, True):
        cells = played(workload, players())
        for cell in cells:
            cell.at = {**cell.at, "length": 64 if workload == "conversation" else 32}
        for number, trial in enumerate(cells[stage].trials):
            if forgetful and trial.arm == arm:
                answers = tuple(replace(answer, cached_tokens=0) for answer in trial.burst.answers)
                cells[stage].trials[number] = replace(trial, burst=replace(trial.burst, answers=answers))
        told.append(judged(cells)["cells"][stage]["ratios"][0]["refused"])
    assert told[0] == []
    assert f"{arm}: 27 request(s) did not find the 32 tokens" in told[1][0] + told[1][-1]


def test_a_policy_text_as_long_as_a_suffix_is_no_fault():
    cells = played("grid", players() | {"base": Played("base")})
    for number, trial in enumerate(cells[0].trials):
        if trial.arm == "base":
            other = tuple(replace(piece, digest=f"other {piece.digest}") for piece in trial.burst.pieces)
            cells[0].trials[number] = replace(trial, burst=replace(trial.burst, pieces=other))
    results = judged(cells)
    (entry,) = [entry for entry in results["cells"][0]["ratios"] if entry["baseline"] == "base"]
    assert "the baseline ran 3 request(s) that ours did not" in entry["refused"][0]
    assert faults(results) == []


def test_an_open_loop_that_nobody_runs_or_fires_is_refused():
    recipe = Recipe()
    recipe.bench.serving.workloads, recipe.bench.serving.engine = ["open_loop"], "vllm"
    recipe.bench.serving.open_loop_arms = ["base"]
    recipe.bench.serving.arms = ["lora", "alora"]
    with pytest.raises(ConfigError, match="holds none of"):
        _for_this_place(recipe.bench)
    recipe.bench.serving.fires, recipe.bench.serving.populations = [8, 9], [4, 100]
    with pytest.raises(ConfigError, match="more policies than the smallest of populations"):
        check_recipe(recipe, "bench")
    assert [len(one.places) for one in arrivals(3, 1.0, 4, [8, 9], 10.0, 0)] == [4, 4, 4]


@pytest.mark.parametrize("key", ["target_ms", "zipf", "kv_gib", "limit_s"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_settings_without_an_end_are_refused(key, value):
    recipe = Recipe()
    setattr(recipe.bench.serving, key, value)
    with pytest.raises(ConfigError, match=f"bench.serving.{key} is {value}"):
        check_recipe(recipe, "bench")
