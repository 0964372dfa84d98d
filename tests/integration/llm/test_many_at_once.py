"""Several requests under way: what was paid is kept, and nothing is paid twice."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from filelock import FileLock

from alora.cli import main
from tests.forked import start_forked
from tests.integration.llm.scripted import asks_for, command, honest, pair, report
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


def test_the_same_question_at_the_same_time_is_asked_once():
    def parrot(number, body):
        time.sleep(0.05)
        return honest(number, body) if asks_for(body) != "cases" else pair({"messages": [{"content": "the same"}]})

    with endpoint(parrot) as server:
        main(command(server.url, FOUR))
        assert asked_twice(server) == 0


def test_ctrl_c_sends_nothing_more(tmp_path):
    processes = []

    def interrupting(number, body):
        if number == 8:
            os.kill(processes[0].pid, signal.SIGINT)
        time.sleep(0.3)
        return honest(number, body)

    with endpoint(interrupting) as server:
        processes.append(start_forked(*command(server.url, FOUR), cache=tmp_path / "cache"))
        processes[0].communicate()
        assert processes[0].returncode == 130
        assert len(server.bodies) <= 9 + 4
        kept = [line for line in Path("out/calls.jsonl").read_text().splitlines() if '"key"' in line]
        assert len(kept) == len(server.bodies)


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
