"""The runner of ``make gpu``: what counts as a record, and what a cell leaves that takes too long."""

import json
import sys

import pytest

from scripts import gpu

WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('[]')"


def cell_of(monkeypatch, script):
    def command(cell, out, shape):
        return [sys.executable, "-c", script, str(out / "rows.json")]

    monkeypatch.setattr(gpu, "command_of", command)


def test_a_finished_cell_is_a_record_and_is_skipped(tmp_path, monkeypatch):
    cell_of(monkeypatch, WRITE)
    assert gpu.run_cell("truth", tmp_path, "mini")
    assert json.loads((tmp_path / "truth/rows.json").read_text()) == []
    cell_of(monkeypatch, "raise SystemExit(3)")
    assert gpu.run_cell("truth", tmp_path, "mini")


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "import time; time.sleep(60)"])
def test_a_cell_that_fails_or_takes_too_long_leaves_what_it_wrote_and_runs_again(end, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "CELL_SECONDS", 1)
    cell_of(monkeypatch, f"{WRITE}; {end}")
    assert not gpu.run_cell("truth", tmp_path, "mini")
    assert [one.name for one in tmp_path.iterdir()] == ["truth.partial"]
    assert (tmp_path / "truth.partial/rows.json").exists()
    cell_of(monkeypatch, WRITE)
    assert gpu.run_cell("truth", tmp_path, "mini")
    assert [one.name for one in tmp_path.iterdir()] == ["truth"]
