"""Two runs side by side: what is noise, what is a difference, and which files are refused."""

import copy
import json
import math
import random
from typing import Any

import pytest

from alora.bench.serving.compare import CONTROL, NO_CONTROL, TOO_FEW, compare_runs, load_run, rounds_for
from alora.bench.serving.report import json_lines
from alora.bench.serving.statistics import holm, least_chance, rearranged
from alora.cli import main
from alora.errors import ConfigError

ARMS = {"alora": 100.0, "null": 100.0, "base": 90.0, "packed": 80.0, "lora": 900.0}


def run_of(seed=0, rounds=8, arms=None, drift=1.0, **times: float) -> dict[str, Any]:
    """Two cells of lengths 1 and 2. ``times``: by how much an arm is slower; ``drift``: the machine, for all of them.

    The null arm runs the same code as ours, so it is slower where ours is.
    """
    draw = random.Random(seed)
    times.setdefault("null", times.get("alora", 1.0))
    cells = []
    for length in (1, 2):
        samples = [
            {"arm": arm, "round": n, "ms": length * ms * drift * times.get(arm, 1.0) * math.exp(draw.gauss(0, 0.03))}
            for arm, ms in (arms or ARMS).items()
            for n in range(rounds)
        ]
        names = {arm: {} for arm in arms or ARMS}
        cells.append({"workload": "grid", "at": {"length": length}, "arms": names, "samples": samples, "ratios": []})
    settings = {"serving": {"lengths": [1]}, "rank": 8, "seed": 0, "threads": 1, "battery": None, "rounds": rounds}
    return {
        "benchmark": "serving", "settings": settings, "cells": cells, "environment": {"torch": "2", "command": "a"},
        "base": {"name": "27m"}, "adapter": {"rank": 8}, "prompt": {}, "dtype": "float32", "clock": "wall",
        "ours": "alora", "engine": {"name": "vllm"}, "device": "cpu", "complete": True,
    }  # fmt: skip


def changed(arm):
    """One arm is slower, on a machine that is slower for all."""
    return run_of(2, drift=1.1, alora=1.4) if arm == "alora" else run_of(2, drift=1.1, lora=1.4)


def verdicts(found, arm):
    return [difference.verdict for difference in found.differences if difference.arm == arm]


def test_one_command_twice_is_hardly_ever_a_difference():
    """Of forty comparisons of equal runs, on a machine that is slower in the second, two at most may say otherwise."""
    told = 0
    for seed in range(40):
        found = compare_runs(run_of(seed), run_of(1000 + seed, drift=1.1))
        told += any(difference.beyond_noise for difference in found.differences)
    assert told <= 2


@pytest.mark.parametrize("arm", ["alora", "lora"])
def test_a_real_difference_is_told_though_the_machine_drifts(arm):
    found = compare_runs(run_of(1), changed(arm))
    assert verdicts(found, arm) == ["slower", "slower"]
    assert verdicts(found, "lora" if arm == "alora" else "alora") == ["no", "no"]
    assert found.slower == (arm == "alora")
    better = compare_runs(changed(arm), run_of(1))
    assert verdicts(better, arm) == ["faster", "faster"]
    assert not better.slower


def test_controls_are_shown_and_never_judged():
    found = compare_runs(run_of(1), run_of(2, base=3.0))
    assert verdicts(found, "base") == verdicts(found, "packed") == [CONTROL, CONTROL]
    assert found.drift["grid"][0] < 0.4
    assert verdicts(compare_runs(run_of(1), run_of(2, base=3.0, alora=2.0)), "alora") == ["no", "no"]


def test_three_rounds_are_too_few_to_tell():
    found = compare_runs(run_of(1, rounds=3), run_of(2, rounds=3, alora=5.0))
    assert verdicts(found, "alora") == [TOO_FEW, TOO_FEW]
    assert not found.slower
    assert "Too few rounds to tell 4 rows: take bench.rounds=5" in found.text()
    assert verdicts(compare_runs(run_of(1, rounds=5), run_of(2, rounds=5, alora=5.0)), "alora") == ["slower"] * 2


def test_without_a_control_nothing_is_told():
    arms = {name: ARMS[name] for name in ("alora", "null", "lora")}
    found = compare_runs(run_of(1, arms=arms), run_of(2, arms=arms, alora=5.0))
    assert verdicts(found, "alora") == [NO_CONTROL, NO_CONTROL]
    assert "none in both" in found.text()


def test_a_stage_of_the_base_alone_is_a_control():
    runs = run_of(1), run_of(2, alora=2.0)
    arms = {name: ARMS[name] for name in ("alora", "null", "lora")}
    read = [run_of(seed, arms=arms)["cells"][0] for seed in (3, 4)]
    for run, cell in zip(runs, read, strict=True):
        for kept in run["cells"]:
            for arm in ("base", "packed"):
                del kept["arms"][arm]
        run["cells"].append(cell | {"at": {"length": 1, "stage": "read"}})
    assert verdicts(compare_runs(*runs), "alora") == ["slower", "slower", CONTROL]


def test_many_rows_are_corrected_for():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert rearranged([2.0, 2.1, 2.2], [1.0, 1.1, 1.2]) == pytest.approx(least_chance(3, 3)) == pytest.approx(0.1)
    assert rearranged([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert rearranged([2.0] * 12, [1.0] * 12) < 0.001  # drawn, where there are too many to try
    assert rounds_for(1) == 4
    assert 20 * least_chance(rounds_for(20), rounds_for(20)) <= 0.05


def test_an_interrupted_run_and_a_withheld_one_are_marked():
    part = run_of(2) | {"complete": False}
    assert "WARNING: the second run was interrupted" in compare_runs(run_of(1), part).text()
    faulty = run_of(3)
    for cell in faulty["cells"]:
        cell["ratios"] = [
            {"baseline": "base", "ratio": {"median": 1.0}, "refused": []},
            {"baseline": "lora", "ratio": None, "refused": ["lora: 2 of 3 verdicts differ"]},
        ]
    (warning,) = compare_runs(faulty, run_of(1)).warnings
    assert "the first run had every ratio withheld" in warning
    assert "2 of 3 verdicts differ" in warning
    faulty["cells"][0]["ratios"][1]["ratio"] = {"median": 9.0}
    assert compare_runs(faulty, run_of(1)).warnings == ()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        pytest.param({"base": {"name": "4b"}}, "base", id="another base"),
        pytest.param({"clock": "CPU"}, "clock", id="other seconds"),
        pytest.param({"adapter": {"rank": 32}}, "adapter", id="another rank"),
        pytest.param({"ours": "packed"}, "ours", id="another arm of ours"),
        pytest.param({"cells": []}, "no cell", id="nothing in common"),
    ],
)
def test_other_work_is_refused(other, told):
    with pytest.raises(ConfigError, match=told):
        compare_runs(run_of(), run_of() | other)


def test_too_few_rounds_are_refused_and_other_versions_named():
    with pytest.raises(ConfigError, match="cannot tell noise"):
        compare_runs(run_of(rounds=2), run_of(rounds=3))
    found = compare_runs(run_of(), run_of() | {"environment": {"torch": "3", "command": "b"}})
    assert found.remarks == ("torch: '2' and '3'",)


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    run = run_of(rounds=3)
    (tmp_path / "bench.json").write_text(json_lines(run))
    assert load_run(tmp_path) == run
    assert sum(line.lstrip().startswith('{"arm"') for line in json_lines(run).splitlines()) == 30


@pytest.mark.parametrize("content", ["", "{", '{"benchmark": "training"}', "[]", "\x00"])
def test_a_file_that_is_no_run_is_refused(tmp_path, content):
    file = tmp_path / "bench.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"bench\.json"):
        load_run(file)
    with pytest.raises(ConfigError, match="read"):
        load_run(tmp_path / "missing")


def without(*path):
    def damage(run):
        *way, last = path
        for key in way:
            run = run[key]
        del run[last]

    return damage


def having(value, *path):
    def damage(run):
        *way, last = path
        for key in way:
            run = run[key]
        run[last] = value

    return damage


SAMPLES = ("cells", 0, "samples")
DAMAGE = [
    (without("settings"), "settings is missing"),
    (without("settings", "serving"), "settings.serving is missing"),
    (having("three", "settings", "rounds"), "settings.rounds is 'three'"),
    (having(None, "environment"), "environment is None"),
    (without("cells"), "cells is missing"),
    (having("x", "cells"), "cells is 'x'"),
    (having("x", "cells", 0), r"cells\[0\] is 'x'"),
    (without("cells", 0, "at"), r"cells\[0\].at is missing"),
    (having([], *SAMPLES), "holds no sample of alora"),
    (having("x", *SAMPLES, 0), r"samples\[0\] names no arm"),
    (without(*SAMPLES, 0, "ms"), r"samples\[0\].ms is None"),
    (having(0, *SAMPLES, 0, "ms"), r"samples\[0\].ms is 0"),
    (having(math.nan, *SAMPLES, 0, "ms"), r"samples\[0\].ms is nan"),
    (having("1", *SAMPLES, 0, "scale"), r"samples\[0\].scale is '1'"),
    (having(1, *SAMPLES, 0, "round"), "two samples of round 1"),
    (having([{"baseline": "lora"}], "cells", 0, "ratios"), "something else than ratios"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGE, ids=[told for _, told in DAMAGE])
def test_a_damaged_run_is_refused_with_what_is_wrong(tmp_path, damage, told):
    run = copy.deepcopy(run_of(rounds=3))
    damage(run)
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(run))
    with pytest.raises(ConfigError, match=f"is damaged: .*{told}"):
        load_run(file)


def test_the_command_ends_with_2_on_a_damaged_run_and_1_on_a_slower_one(tmp_path, capsys):
    for name, run in {"a": run_of(1), "slow": run_of(2, alora=2.0), "bad": {"benchmark": "serving"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(run))
    paths = {name: str(tmp_path / f"{name}.json") for name in ("a", "slow", "bad")}
    assert main(["bench", "compare", paths["a"], paths["a"]]) == 0
    assert main(["bench", "compare", paths["a"], paths["slow"]]) == 1
    assert main(["bench", "compare", paths["a"], paths["bad"]]) == 2
    assert "damaged" in capsys.readouterr().err


def open_loop_alone(held: float, **more: Any) -> dict[str, Any]:
    figures = {"p95": {"value": 500.0}}
    probes = [
        {"rate": held, "complete": True, "figures": figures},
        {"rate": 2 * held, "complete": False, "figures": figures},
    ]
    entry = {"kind": "rate", "arm": "alora", "population": 20, "target_ms": 1000.0, "probes": probes} | more
    return run_of() | {"cells": [], "open_loop": [entry]}


def test_runs_of_the_open_loop_alone_are_shown_and_not_judged():
    found = compare_runs(open_loop_alone(2.0), open_loop_alone(1.0))
    assert "| alora, population 20 | 2.00 to 4.00 | 1.00 to 2.00 |" in found.text()
    assert "no noise is known" in found.text()
    assert "beyond the noise" not in found.text()
    assert found.as_dict()["rates"] == [["alora, population 20", "2.00 to 4.00", "1.00 to 2.00"]]
    assert not found.slower
    withheld = compare_runs(open_loop_alone(2.0), open_loop_alone(1.0, refused=["alora: wrong"]))
    assert "| 2.00 to 4.00 | withheld |" in withheld.text()
    with pytest.raises(ConfigError, match="no cell and no rate"):
        compare_runs(open_loop_alone(2.0), open_loop_alone(1.0, arm="lora"))


@pytest.mark.parametrize("damage", [{"probes": [3]}, {"probes": None}, {"target_ms": "soon"}])
def test_a_damaged_open_loop_is_refused(tmp_path, damage):
    (tmp_path / "bench.json").write_text(json_lines(open_loop_alone(2.0)))
    assert load_run(tmp_path)["open_loop"]
    (tmp_path / "bench.json").write_text(json_lines(open_loop_alone(2.0, **damage)))
    with pytest.raises(ConfigError, match="open_loop holds something else"):
        load_run(tmp_path)
