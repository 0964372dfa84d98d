"""``alora bench training`` from the command line, at toy sizes."""

import pytest

from alora.cli import main
from alora.config.schema import SHAPES as KNOWN_SHAPES
from alora.config.schema import BenchSettings
from alora.lab.bench.record import load_record
from alora.lab.bench.shapes import SHAPES
from alora.lab.bench.trials import AA, FULL_SEQUENCE


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    command = ["bench", "training", "bench=quick", "bench.shape=toy", "bench.prefixes=[48]", "bench.policies=[1,3]"]
    main([*command, f"output={folder}"])
    return load_record(folder)


@pytest.mark.parametrize(("name", "linked"), [("latency.png", True), ("bench.md", False)])
def test_a_users_file_of_the_name_of_a_plot_stays(tmp_path, capsys, name, linked):
    mine, folder = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    mine.write_text("mine")
    (folder / name).symlink_to(mine) if linked else (folder / name).write_text("mine")
    assert main(["bench", "training", "bench=quick", "bench.shape=toy", f"output={folder}"]) == 2
    assert f"{name} is there and is not a report of alora's" in capsys.readouterr().err
    assert (folder / name).read_text() == "mine"


def test_every_system_is_measured_and_every_sample_kept(record):
    cell, own = record.cells
    baselines = [*FULL_SEQUENCE, "trl"]
    assert (own.workload, own.systems) == ("own_rows", ["packed P=3", *baselines, AA])
    assert [own.of(name)[0].run.pieces for name in own.systems] == [24, 1, 8, 1, 8, 1, 24]
    systems = ["packed P=1", "packed P=3", *baselines, AA]
    assert cell.systems == systems
    assert {name: [trial.round for trial in cell.of(name)] for name in systems} == {
        name: [*range(8)] for name in systems
    }
    assert [cell.of(name)[0].run.pieces for name in systems] == [8, 24, 1, 8, 1, 8, 1, 8]
    assert cell.of("packed P=3")[0].run.computed == 8 * (48 + 3 * 12)
    assert own.of("packed P=3")[0].run.computed == 24 * (48 + 12)


def test_launches_stand_next_to_the_times(record):
    """On a base of a few layers and few numbers: what PEFT launches does not depend on the batch."""
    for cell in record.cells:
        assert set(cell.launches) == {*cell.ours, *FULL_SEQUENCE}
        found = {name: one.launches for name, one in cell.launches.items()}
        assert found["peft"] == found["peft_batch"] > found["peft_lora"] == found["peft_lora_batch"] > 100
        assert all(found[name] > 0 for name in cell.ours)


def test_the_baselines_agree_with_ours_on_the_very_workload(record):
    for cell in record.cells:
        found = {one.system: one.worst for one in cell.agreement}
        assert set(found) == {*FULL_SEQUENCE, "trl"}
        assert all(worst <= 1e-4 for worst in found.values())


def test_every_shape_of_the_schema_exists():
    assert tuple(SHAPES) == KNOWN_SHAPES
    assert BenchSettings().shape in SHAPES


@pytest.mark.parametrize("group", ["quick", "cpu", "cpu_open_loop", "gpu"])
def test_every_group_composes(group, capsys):
    assert main(["bench", "serving", f"bench={group}", "--cfg", "job"]) == 0
    assert "workload: serving" in capsys.readouterr().out
