"""Two runs side by side: what is noise, what is a difference, and which files are refused."""

import copy
import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from alora.bench.compare import CONTROL, NO_CONTROL, compare_records
from alora.bench.record import LoadRecord, OfferedRate, Record, load_record, plain, record_json
from alora.bench.trials import AA, Cell, Refusal, Run, Trial
from alora.cli import main
from alora.errors import ConfigError
from tests.unit.bench.cases import judged, played, players, record_of

SYSTEMS = {"alora": 0.1, AA: 0.1, "base": 0.09, "packed": 0.08, "lora": 0.9}


def run_of(seed=0, rounds=8, systems=None, drift=1.0, **times: float) -> Record:
    """Two cells of 1 and 2 tokens. ``times``: by how much a system is slower; ``drift``: the machine, for all of them.

    The A/A run runs the same code as ours, so it is slower where ours is.
    """
    draw = random.Random(seed)
    times.setdefault(AA, times.get("alora", 1.0))
    cells = []
    for tokens in (1, 2):
        found = []
        for name, seconds in (systems or SYSTEMS).items():
            for number in range(rounds):
                took = tokens * seconds * drift * times.get(name, 1.0) * math.exp(draw.gauss(0, 0.03))
                found.append(Trial(name, number, 0, Run(took, took, 1, 1, 0, 1, 0.0, [took])))
        cells.append(Cell("grid", {"tokens": tokens}, ["alora"], trials=found))
    return record_of(cells)


def changed(name):
    """One system is slower, on a machine that is slower for all."""
    return run_of(2, drift=1.1, alora=1.4) if name == "alora" else run_of(2, drift=1.1, lora=1.4)


def verdicts(found, name):
    return [change.verdict for change in found.changes if change.system == name]


def test_one_command_twice_is_hardly_ever_a_difference():
    """Of forty comparisons of equal runs, on a machine that is slower in the second, two at most may say otherwise."""
    told = 0
    for seed in range(40):
        found = compare_records(run_of(seed, rounds=5), run_of(1000 + seed, rounds=5, drift=1.1))
        told += any(change.verdict in ("faster", "slower") for change in found.changes)
    assert told <= 2


@pytest.mark.parametrize("name", ["alora", "lora"])
def test_a_real_difference_is_told_though_the_machine_drifts(name):
    found = compare_records(run_of(1), changed(name))
    assert verdicts(found, name) == ["slower", "slower"]
    assert verdicts(found, "lora" if name == "alora" else "alora") == ["no", "no"]
    assert found.slower == (name == "alora")
    better = compare_records(changed(name), run_of(1))
    assert verdicts(better, name) == ["faster", "faster"]
    assert not better.slower


def test_controls_are_shown_and_never_judged():
    found = compare_records(run_of(1), run_of(2, base=3.0))
    assert verdicts(found, "base") == verdicts(found, "packed") == [CONTROL, CONTROL]
    assert found.drift["grid"][0] < 0.4
    assert verdicts(compare_records(run_of(1), run_of(2, base=3.0, alora=2.0)), "alora") == ["no", "no"]


def test_three_rounds_show_what_is_far_beyond_the_noise_and_nothing_else():
    assert verdicts(compare_records(run_of(1, rounds=3), run_of(2, rounds=3, alora=5.0)), "alora") == ["slower"] * 2
    assert verdicts(compare_records(run_of(1, rounds=3), run_of(2, rounds=3, alora=1.05)), "alora") == ["no"] * 2


def test_without_a_control_nothing_is_told():
    systems = {name: SYSTEMS[name] for name in ("alora", AA, "lora")}
    found = compare_records(run_of(1, systems=systems), run_of(2, systems=systems, alora=5.0))
    assert verdicts(found, "alora") == [NO_CONTROL, NO_CONTROL]
    assert "none in both" in found.text()


def test_a_stage_of_the_base_alone_is_a_control():
    systems = {name: SYSTEMS[name] for name in ("alora", AA, "lora")}
    runs = run_of(1, systems=systems), run_of(2, systems=systems, alora=2.0)
    for run, seed in zip(runs, (3, 4), strict=True):
        read = run_of(seed, systems=systems).cells[0]
        run.cells.append(replace(read, at={"tokens": 1, "stage": "read"}, ours=[]))
    assert verdicts(compare_records(*runs), "alora") == ["slower", "slower", CONTROL]


def test_a_stopped_run_and_a_withheld_one_are_marked():
    part = replace(run_of(2), stopped="interrupted")
    assert "the second run stopped before its end: interrupted" in compare_records(run_of(1), part).text()
    systems = players()
    systems[AA].seconds = 2.0
    faulty = judged(played("grid", systems))
    assert "BIASED_AA" in " ".join(compare_records(faulty, faulty).remarks)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda run: run.base.fingerprint.update(weights="4b"), id="another base"),
        pytest.param(lambda run: vars(run).update(clock="CPU"), id="other seconds"),
        pytest.param(lambda run: run.settings.update({"rank": "32"}), id="another rank"),
        pytest.param(lambda run: run.settings.update({"serving.turns": "9"}), id="another workload"),
        pytest.param(lambda run: run.cells.clear(), id="nothing in common"),
    ],
)
def test_other_work_is_refused(change):
    other = copy.deepcopy(run_of())
    change(other)
    with pytest.raises(ConfigError):
        compare_records(run_of(), other)


def test_too_few_rounds_are_refused_and_other_versions_named():
    with pytest.raises(ConfigError, match="cannot tell noise"):
        compare_records(run_of(rounds=2), run_of(rounds=3))
    other = run_of()
    other.environment["torch"] = "3"
    assert compare_records(run_of(), other).remarks == ["torch: '2' and '3'"]


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    run = judged(played("warm", players()), slots=6)
    run.load.append(LoadRecord("rate", "alora", 4, 1000.0, 4, 4, rates=[OfferedRate(1.0, True, True, 2.0, [3.0])]))
    (tmp_path / "bench.json").write_text(record_json(run))
    again = load_record(tmp_path)
    assert record_json(again) == record_json(run)
    assert plain(again) == plain(run)
    assert again.cells[1].whole_ms("lora") == run.cells[1].whole_ms("lora")
    trials = sum(len(cell.trials) for cell in run.cells)
    assert sum(line.lstrip().startswith('{"system"') for line in record_json(run).splitlines()) == trials


@pytest.mark.parametrize("content", ["", "{", '{"benchmark": "training"}', "[]", "\x00", '{"format": 1}'])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    file = tmp_path / "bench.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"bench\.json"):
        load_record(file)
    with pytest.raises(ConfigError, match="read"):
        load_record(tmp_path / "missing")


def without(*path):
    def damage(data: Any) -> None:
        *way, last = path
        for key in way:
            data = data[key]
        del data[last]

    return damage


def having(value, *path):
    def damage(data: Any) -> None:
        *way, last = path
        for key in way:
            data = data[key]
        data[last] = value

    return damage


RUN = ("cells", 0, "trials", 0, "run")
DAMAGE = [
    without("settings"), without("base", "dtype"), having(None, "environment"), without("cells"), having("x", "cells"),
    having("x", "cells", 0), without("cells", 0, "at"), having("x", "cells", 0, "trials", 0), without(*RUN, "seconds"),
    having("1", *RUN, "seconds"), having("three", "cells", 0, "trials", 0, "round"), having([3], "load"),
    having(1, *RUN, "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_refused(tmp_path, damage):
    data = json.loads(record_json(run_of(rounds=3)))
    damage(data)
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="is damaged: "):
        load_record(file)


def test_the_command_ends_with_2_on_a_damaged_record_and_1_on_a_slower_one(tmp_path, capsys):
    for name, run in {"a": run_of(1), "slow": run_of(2, alora=2.0)}.items():
        (tmp_path / f"{name}.json").write_text(record_json(run))
    (tmp_path / "bad.json").write_text('{"format": 3}')
    paths = {name: str(tmp_path / f"{name}.json") for name in ("a", "slow", "bad")}
    assert main(["bench", "compare", paths["a"], paths["a"]]) == 0
    assert main(["bench", "compare", paths["a"], paths["slow"]]) == 1
    assert main(["bench", "compare", paths["a"], paths["bad"]]) == 2
    assert "damaged" in capsys.readouterr().err
    assert main(["bench", "compare", paths["a"], paths["a"], "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["slower"] is False


def open_loop_alone(held: float, system: str = "alora", refused: bool = False) -> Record:
    rates = [OfferedRate(held, True, True, 1.0, [500.0]), OfferedRate(2 * held, False, True, 1.0, [500.0])]
    why = [Refusal("UNEQUAL_VERDICTS", "wrong")] if refused else []
    return record_of(load=[LoadRecord("rate", system, 20, 1000.0, 4, 4, rates=rates, refused=why)])


def test_runs_of_the_open_loop_alone_are_shown_and_not_judged():
    found = compare_records(open_loop_alone(2.0), open_loop_alone(1.0))
    assert found.rates == [("alora, population 20", "2.00 to 4.00", "1.00 to 2.00")]
    assert "no noise is known" in found.text()
    assert not found.slower
    withheld = compare_records(open_loop_alone(2.0), open_loop_alone(1.0, refused=True))
    assert withheld.rates[0][2] == "withheld: wrong"
    with pytest.raises(ConfigError, match="no cell and no rate"):
        compare_records(open_loop_alone(2.0), open_loop_alone(1.0, system="lora"))
