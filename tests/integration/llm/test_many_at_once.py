"""Several requests under way: what was paid is kept, and nothing is paid twice."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from filelock import FileLock

from alora.cli import main
from tests.integration.llm.scripted import command, honest, report
from tests.unit.llm.endpoint import endpoint

FOUR = "judge.concurrency=4"
PRICES = ("judge.input_price=1000", "judge.output_price=0")  # 0.1 for each request of 100 tokens


def slow(number, body):
    time.sleep(random.Random(number).uniform(0.02, 0.1))
    return honest(number, body)


def asked_twice(server) -> int:
    return sum(count - 1 for count in Counter(json.dumps(body, sort_keys=True) for body in server.bodies).values())


@pytest.mark.parametrize("limit", ["generate.max_calls=40", "generate.max_calls=47", "generate.max_cost=4"])
def test_answers_under_way_when_the_budget_ends_are_kept_and_counted(limit):
    with endpoint(slow) as server:
        main(command(server.url, FOUR, *PRICES, limit, pairs=16))
        assert report()["failed_requests"] == 0
        assert report()["cost"] == pytest.approx(0.1 * len(server.bodies))
        assert main(command(server.url, FOUR, pairs=16)) == 0
        assert asked_twice(server) == 0


def test_two_processes_do_not_write_one_folder(capsys):
    with endpoint(honest) as server:
        assert main(command(server.url, pairs=2)) == 0
        (lock,) = Path.cwd().rglob(".lock")
        with FileLock(lock):
            assert main(command(server.url, pairs=4)) == 2
        assert len(server.bodies) == 1 + 2 * 7
    assert f"another alora process works in {lock.parent.name}" in capsys.readouterr().err.replace(
        str(lock.parent), lock.parent.name
    )
