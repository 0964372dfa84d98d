"""``alora train`` under torchrun and accelerate: one run, one voice, and a failure that ends all."""

import time

import pytest
import torch
from safetensors.torch import load_file

from alora.adapter.folder import WEIGHTS_FILE
from tests.forked import run_forked
from tests.integration.distributed.launched import ACCELERATE, TORCHRUN, finish, kill, start
from tests.toy_recipe import toy_overrides


def numbers(folder) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in load_file(folder / "adapter" / WEIGHTS_FILE).values()])


def test_killed_under_torchrun_goes_on_under_accelerate_as_in_one_process(tmp_path):
    cache = tmp_path / "cache"
    overrides = [*toy_overrides(tmp_path, tmp_path / "one"), "base.dtype=float64", "base.device=cpu"]
    code, _, errors = run_forked("train", *overrides, cache=cache)
    assert code == 0, errors

    two = ["-m", "alora", "train", *overrides, f"run_dir={tmp_path / 'two'}"]
    process = start(TORCHRUN, *two, cache=cache)
    deadline = time.monotonic() + 200
    while process.poll() is None and not (tmp_path / "two/checkpoints/checkpoint-4/complete.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kill(process)
    assert not (tmp_path / "two/policies/toy/adapter").exists()

    code, output, errors = finish(start(ACCELERATE, *two, cache=cache))
    assert code == 0, errors
    assert errors.count("going on in") == 1
    assert output.count("KV identity certified") == output.count("verdict on conversation") == 1
    mine, alone = numbers(tmp_path / "two"), numbers(tmp_path / "one")
    assert ((mine - alone).norm() / alone.norm()).item() <= 1e-6

    def names(run):
        return sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file())

    assert names(tmp_path / "two") == names(tmp_path / "one")


@pytest.mark.timeout(200)  # no process waits for one that is gone
def test_one_process_that_fails_ends_all_with_its_own_message(tmp_path):
    code, _, errors = finish(start(TORCHRUN, "-m", "tests.integration.distributed.one_fails"))
    assert code == 1
    assert errors.count("alora: ") == 1
    assert "alora: [Errno 28]" in errors or "No space left on device" in errors
    assert "is gone" not in errors
