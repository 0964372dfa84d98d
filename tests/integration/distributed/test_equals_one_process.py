"""Two processes (gloo) end where one does: weights within 1e-6, the same standings and losses, on both of them."""

import json

import pytest
import torch

from tests.integration.distributed.launched import TORCHRUN, finish, start
from tests.integration.distributed.scenarios import SCENARIOS, outcome, train, weights
from tests.peft_reference import relative_error

UNADDED = "one policy unadded"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Every scenario, and the negative control last, by two processes that are started once."""
    folder = tmp_path_factory.mktemp("two")
    names = [*SCENARIOS, UNADDED]
    code, _, errors = finish(start(TORCHRUN, "-m", "tests.integration.distributed.scenarios", str(folder), *names))
    assert code == 0, errors[-3000:]
    return folder


def read(folder, name, rank):
    return torch.load(folder / f"{name}.{rank}.pt"), json.loads((folder / f"{name}.{rank}.json").read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_equal_one(two, tmp_path, name):
    alone = train(name, tmp_path)
    for rank in range(2):
        numbers, told = read(two, name, rank)
        assert relative_error(numbers, weights(alone)) <= 1e-6
        wanted = outcome(alone)
        for mine, other in zip(told["standings"], wanted["standings"], strict=True):
            best, wanted_best = mine.pop("best_loss"), other.pop("best_loss")  # None: diverged before the first
            assert best == (wanted_best if wanted_best is None else pytest.approx(wanted_best, rel=1e-9))
            for name_of_sum in ("smoothed_loss", "lowest_loss"):  # of sums in another order
                assert (mine.pop(name_of_sum) or 0) == pytest.approx(other.pop(name_of_sum) or 0, rel=1e-6)
            assert mine == other
        assert told["steps"] == wanted["steps"]
        if rank == 0:
            assert told["losses"] == pytest.approx(wanted["losses"], rel=1e-3)  # the trainer rounds what it logs


def test_both_hold_the_same_bits(two):
    for name in SCENARIOS:
        assert torch.equal(read(two, name, 0)[0], read(two, name, 1)[0])


def test_only_the_first_writes(two):
    for folder in (two / "checkpoints").glob("*/checkpoint-*"):
        assert not list(folder.glob("rng_state_1*"))
        assert (folder / "complete.json").exists()


def test_without_added_gradients_it_is_another_training(two, tmp_path):
    """Negative control: the bound sees what a missing exchange does, and the processes drift apart."""
    alone = weights(train("one policy", tmp_path))
    mine, other = (read(two, UNADDED, rank)[0] for rank in range(2))
    assert relative_error(mine, alone) > 1e-3
    assert not torch.equal(mine, other)
