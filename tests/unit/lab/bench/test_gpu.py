"""The runner of ``make gpu``: what counts as a record, and what a cell leaves that takes too long."""

import json
import sys

import pytest

from alora.config.compose import load_recipe
from alora.lab.bench.harness import AA_PAIRS
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


def test_the_grid_of_bench_gpu_fits_its_limit():
    """By what is expected of LoRA, of aLoRA twice (the A/A run), and as much again for the base and the scorer."""
    recipe = load_recipe("bench", ["serving", "bench=gpu"], print)
    assert recipe
    bench = recipe.bench
    cells = [(tokens, policies) for tokens in bench.prefixes for policies in bench.policies]
    rounds = max(bench.rounds, -(-AA_PAIRS // len(cells)))
    seconds = sum(gpu.GRID[cell][0][1] + 4 * gpu.GRID[cell][1][1] for cell in cells) / 1000
    start = 120  # of the engine, with its graphs
    assert start + (rounds + 1) * seconds <= bench.limit_s == 400 < gpu.CELL_SECONDS
