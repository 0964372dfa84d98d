"""``alora bench training`` from the command line, at toy sizes."""

import json
from dataclasses import replace

import pytest
import torch

from alora.bench.record import load_record
from alora.bench.run import run_bench
from alora.bench.shapes import SHAPES
from alora.bench.trials import AA
from alora.cli import main
from alora.config.schema import SHAPES as KNOWN_SHAPES
from alora.config.schema import BaseSettings, BenchSettings


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    command = ["bench", "training", "bench=quick", "bench.shape=toy", "bench.prefixes=[48]", "bench.policies=[1,3]"]
    code = main([*command, f"output={folder}"])
    return code, load_record(folder), (folder / "bench.md").read_text()


@pytest.mark.parametrize("name", ["latency.png", "speed_up.png", "open_loop.png", "bench.md"])
@pytest.mark.parametrize("linked", [True, False])
def test_a_users_file_of_the_name_of_a_plot_stays(tmp_path, capsys, name, linked):
    mine, folder = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    mine.write_text("mine")
    (folder / name).symlink_to(mine) if linked else (folder / name).write_text("mine")
    assert main(["bench", "training", "bench=quick", "bench.shape=toy", f"output={folder}"]) == 2
    assert f"{name} is there and is not a report of alora's" in capsys.readouterr().err
    assert (folder / name).read_text() == "mine"


def test_every_system_is_measured_and_every_sample_kept(report):
    _, record, _ = report
    (cell,) = record.cells
    systems = ["packed P=1", "packed P=3", "peft", "trl", AA]
    assert cell.systems == systems
    assert {name: [trial.round for trial in cell.of(name)] for name in systems} == {
        name: [*range(8)] for name in systems
    }
    assert [cell.of(name)[0].run.pieces for name in systems] == [1, 3, 1, 1, 1]


def test_the_baselines_agree_with_ours_on_the_very_workload(report):
    _, record, _ = report
    found = {one.system: one.worst for one in record.cells[0].agreement}
    assert set(found) == {"peft", "trl"}
    assert all(worst <= 1e-4 for worst in found.values())


def test_order_is_shuffled_and_interleaved(report):
    _, record, _ = report
    orders = {}
    for trial in sorted(record.cells[0].trials, key=lambda trial: (trial.round, trial.position)):
        orders.setdefault(trial.round, []).append(trial.system)
    assert len({tuple(order) for order in orders.values()}) > 1
    assert all(set(order) == set(orders[0]) for order in orders.values())


def test_a_record_says_what_it_was_measured_on_and_by_what(report):
    code, record, text = report
    environment = record.environment
    assert {"torch", "processor", "cpu flags", "command", "alora"} <= environment.keys()
    assert record.base.fingerprint == {"weights": "random, seed 0, shape toy"}
    assert record.machine.flops == max(record.machine.kernels.values()) > 0
    assert environment["torch"] in text
    assert environment["processor"] in text
    assert all(f" | {name} | " in text for name in ("peft", "trl"))
    assert code == int(bool(record.faults())) == int("## Withheld" in text)
    refused = {one.code for ratio in record.cells[0].ratios for one in ratio.refused}
    assert refused <= {"BIASED_AA", "NOISY_AA"}  # the machine's


def test_a_base_in_four_bits():
    """TRL casts adapters of a 4-bit base to bfloat16, which the guard tells from rounding."""
    settings = BenchSettings(workload="training", shape="mini", prefixes=[40], suffix=8, policies=[1], rounds=2, rank=4)
    plain, packed = (
        run_bench(replace(settings, baselines=names), base, torch.device("cpu"), torch.float32)
        for names, base in ((["peft"], BaseSettings()), (["peft", "trl"], BaseSettings(quantization="nf4")))
    )
    assert (plain.base.quantization, packed.base.quantization) == ("none", "nf4")
    assert packed.base.mib < 0.6 * plain.base.mib  # the embedding, half of it here, is not packed
    worst = {one.system: one.worst for one in packed.cells[0].agreement}
    assert worst["peft"] <= 1e-4 < worst["trl"]
    assert "UNEQUAL_GRADIENTS" in [one.code for one in packed.cells[0].ratio("trl").refused]


def test_every_shape_of_the_schema_exists():
    assert tuple(SHAPES) == KNOWN_SHAPES
    assert BenchSettings().shape in SHAPES


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("bench.policies=[]", "bench.policies"),
        ("bench.suffix=3", "bench.suffix"),
        ("bench.baselines=[unsloth]", "bench.baselines"),
        ("bench.shape=70b", "bench.shape"),
        ("bench.targets=[]", "bench.targets"),
        ("bench.serving.systems=[sglang]", "bench.serving.systems"),
        ("bench.serving.workloads=[pipeline]", "bench.serving.workloads"),
        ("bench.serving.populations=[0]", "bench.serving.populations"),
    ],
)
def test_impossible_settings_are_refused_before_anything_runs(override, part, capsys):
    assert main(["bench", "training", override]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize("group", ["quick", "cpu", "cpu_open_loop", "gpu", "guard"])
def test_every_group_composes(group, capsys):
    assert main(["bench", "serving", f"bench={group}", "--cfg", "job"]) == 0
    assert "workload: serving" in capsys.readouterr().out


def test_json_is_what_is_written(tmp_path, capsys, monkeypatch, report):
    _, record, _ = report
    monkeypatch.setattr("alora.commands.bench.run_bench", lambda *args: record)
    main(["bench", "training", f"output={tmp_path}", "json=true"])
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "bench.json").read_text())
