"""The scripts that wait for another machine run here on a toy, and what they find wrong ends them."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[4] / "scripts"


@pytest.fixture(autouse=True)
def torch_as_it_was():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def _run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


def _cost(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    _run(
        "prefix_cache_cost.py", monkeypatch, "--shape", "toy", "--prefix", "40", "--suffix", "8", "--policies", "2",
        "--conversations", "2", "--epochs", "2", *more,
    )  # fmt: skip


def test_prefix_cache_cost_on_a_toy(tmp_path, monkeypatch):
    _cost(monkeypatch, "--out", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    text = json.dumps(found)
    assert text.count("epoch_seconds") == 2
    assert [entry["misses_later"] for entry in found["caches"].values()] == [2, 0]
