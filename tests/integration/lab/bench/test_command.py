"""``alora bench training`` from the command line, at toy sizes."""

import pytest

from alora.cli import main
from alora.lab.bench.record import load_record
from alora.lab.bench.trials import AA, FULL_SEQUENCE


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    command = ["bench", "training", "bench=quick", "bench.shape=toy", "bench.prefixes=[48]", "bench.policies=[1,3]"]
    main([*command, f"output={folder}"])
    return load_record(folder)


@pytest.mark.parametrize(("name", "linked"), [("latency.png", True), ("bench.md", False)])
def test_a_users_file_of_the_name_of_a_plot_stays(tmp_path, name, linked):
    mine, folder = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    mine.write_text("mine")
    (folder / name).symlink_to(mine) if linked else (folder / name).write_text("mine")
    assert main(["bench", "training", "bench=quick", "bench.shape=toy", f"output={folder}"]) == 2
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
