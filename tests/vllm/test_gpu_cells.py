"""``make gpu`` at toy sizes: every cell runs, writes its record, and is not run again."""

import json
import os

import pytest

from alora.lab.bench.record import load_record
from scripts import gpu
from tests.forked import Forked


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu")
    told, errors = make_gpu(out)
    assert sorted(one.name for one in out.iterdir()) == sorted(gpu.CELLS), (told + errors)[-3000:]
    return out, told


def make_gpu(out):
    process = Forked(["-m", "scripts.gpu", "--shape", "mini", "--out", str(out)], os.environ)
    return process.communicate()


def rows(folder, cell, **of):
    return [row for row in json.loads((folder / cell / "rows.json").read_text()) if of.items() <= row.items()]


def test_every_cell_says_what_was_measured_and_what_was_expected(folder):
    out, told = folder
    for cell in gpu.CELLS:
        found = list(gpu.compared(cell, out / cell))
        assert found
        assert all(name in told and wanted in told for name, _, wanted in found)


def test_the_cells_hold_what_they_are_for(folder):
    out, _ = folder
    assert rows(out, "truth", what="frequencies of a random base")[0]["dtype"] == "torch.float32"
    assert {row["system"] for row in rows(out, "truth", what="rounded from right")} == {"base", "alora", "lora"}
    cached = {row["system"]: row["cached"] for row in rows(out, "burst", what="burst")}
    assert (cached["alora"], cached["lora"]) == ([0, 160, 160, 160], [0] * 4)
    right = rows(out, "burst", what="verdicts", reference="float32")
    assert {row["system"] for row in right} == {"base", "alora", "lora", "packed"}
    assert all(row["worst"] < 0.05 and len(row["answers"]) == row["checked"] == 4 for row in right)
    assert json.loads((out / "acceptance/acceptance.json").read_text())["passed"]
    assert {cell.workload for cell in load_record(out / "grid").cells} == {"grid"}
    assert all(row["ms"] > 0 for row in rows(out, "score"))
    assert load_record(out / "train").cells


def test_a_cell_whose_record_is_there_is_not_run_again(folder):
    out, _ = folder
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    make_gpu(out)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before
