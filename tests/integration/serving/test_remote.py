"""The clients of a server: the verdicts of the base in this process, in order, whatever way they are asked for."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import alora
from alora.bundle.read import load_battery
from alora.errors import CheckFailed, ConfigError, DataError
from alora.serving import client, completions
from tests.integration.serving.server import serving
from tests.vllm import bundles as store

TEXTS = ("Where is my parcel?", "Take two pills a day.", "A refund, please! " * 9, "No.")
ROWS = [{"id": f"row-{number}", "messages": [{"role": "user", "content": text}]} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def here() -> list[alora.Verdicts]:
    """The verdicts on :data:`ROWS`, computed in this process."""
    with alora.load(store.battery(), base=store.base_folder()) as battery:
        return list(battery.score_many(ROWS))


@pytest.fixture
def server():
    with serving(store.base(), load_battery(store.battery())) as running:
        yield running


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time that a client reads: ``now``."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(client, "_BEAT_S", 3600)  # a leap of this clock is a pause, and no event loop that stands still
    return made


def same(found: alora.Verdicts, wanted: alora.Verdicts) -> bool:
    pairs = list(zip(found, wanted, strict=True))
    return (found.conversation, found.prefix_tokens) == (wanted.conversation, wanted.prefix_tokens) and all(
        (one.policy, one.label, one.adapter_digest) == (other.policy, other.label, other.adapter_digest)
        and one.probability == pytest.approx(other.probability, abs=1e-6)
        for one, other in pairs
    )


def test_the_client_gives_the_verdicts_of_this_process(server, here):
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        assert remote.policies == ("advice", "refunds")
        assert same(remote.score(ROWS[1]), here[1])
        assert all(map(same, remote.score_many(ROWS), here))
        first = remote.score_many(ROWS)
        assert same(next(first), here[0])
        first.close()  # the rows that are under way are given up
        assert same(remote.score(ROWS[3]), here[3])


def test_the_asynchronous_client_answers_many_callers_at_once(server, here):
    async def ask() -> tuple[list[alora.Verdicts], list[alora.Verdicts]]:
        async with alora.AsyncClient(server.url, store.battery(), base=store.base_folder()) as remote:
            together = await asyncio.gather(*map(remote.score, ROWS))
            return together, [verdicts async for verdicts in remote.score_many(ROWS)]

    together, in_order = asyncio.run(ask())
    assert all(map(same, together, here))
    assert all(map(same, in_order, here))


def test_a_client_in_a_running_loop_and_in_threads(server, here):
    async def ask() -> list[alora.Verdicts]:
        with alora.Client(server.url, store.battery(), base=store.base_folder(), policies=["refunds"]) as remote:
            assert remote.policies == ("refunds",)
            remote.score(ROWS[0])  # as in a notebook, whose loop runs
            return await asyncio.gather(*(asyncio.to_thread(remote.score, row) for row in ROWS))

    for found, wanted in zip(asyncio.run(ask()), here, strict=True):
        assert found["refunds"].probability == pytest.approx(wanted["refunds"].probability, abs=1e-6)


def test_a_server_is_verified_once_and_before_any_verdict(server, clock):
    server.unplugged.add(load_battery(store.battery())[1].served_name)
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        for _ in range(2):
            with pytest.raises(CheckFailed, match="plugin is not active there"):
                remote.score(ROWS[0])
        server.unplugged.clear()
        remote.score(ROWS[0])
        asked = len(server.asked)
        remote.score(ROWS[0])
        assert len(server.asked) == asked + 2  # one request a policy, and nothing else


def test_after_two_idle_seconds_the_server_must_show_again_that_it_is_the_one(server, clock):
    """It may have been restarted on another base, or without the plugin, while nobody asked."""
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        remote.score(ROWS[0])
        asked = len(server.asked)
        clock.now += 3
        remote.score(ROWS[0])
        assert len(server.asked) == asked + 4  # one bundle's golden row, and its refusal uninvoked; two policies
        clock.now += 3
        server.unplugged.update(bundle.served_name for bundle in load_battery(store.battery()))
        with pytest.raises(CheckFailed, match="plugin is not active there"):
            remote.score(ROWS[0])


def test_an_answer_that_is_no_more_the_same_has_all_golden_rows_asked_for(server, clock):
    """Another base may give one golden row's answer within its tolerance."""
    rows = len(load_battery(store.battery())[0].golden)
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        remote.score(ROWS[0])
        asked = len(server.asked)
        server.bias = 0.1  # of every answer, less than the tolerance
        clock.now += 3
        remote.score(ROWS[0])
        assert len(server.asked) == asked + 2 + 1 + rows + 2  # one row; then all; two policies
        clock.now += 3
        server.bias = 3.0
        with pytest.raises(CheckFailed, match="answers a golden row of"):
            remote.score(ROWS[0])


def test_the_first_call_after_a_fork_may_be_of_many_rows(server, here):
    """The child's requests go over connections of its own: on the parent's, answers would be taken for others'."""
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        remote.score(ROWS[0])
        child = os.fork()
        if not child:
            found = list(remote.score_many(ROWS))
            os._exit(0 if all(map(same, found, here)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all(map(same, remote.score_many(ROWS), here))


def test_rows_may_wait_or_ask_the_same_client(server, here):
    """They are read in the caller's thread, so nobody else waits for them."""
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        asked = (row for row in ROWS if remote.score(row) is not None)
        assert all(map(same, remote.score_many(asked), here))
        paused, served = threading.Event(), threading.Event()

        def live():
            yield ROWS[0]
            paused.set()
            assert served.wait(20)
            yield ROWS[1]

        with ThreadPoolExecutor() as pool:
            rows = pool.submit(lambda: list(remote.score_many(live())))
            assert paused.wait(20)
            assert same(remote.score(ROWS[2]), here[2])
            served.set()
            assert all(map(same, rows.result(20), here))


def test_who_waits_while_a_client_is_closed_is_told_so(server, monkeypatch):
    going = threading.Event()

    async def never(self, messages, where):
        going.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(alora.AsyncClient, "_score", never)
    remote = alora.Client(server.url, store.battery(), base=store.base_folder())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(remote.score, ROWS[0])
        assert going.wait(20)
        remote.close()
        with pytest.raises(ConfigError, match="closed"):
            waiting.result(20)


def test_a_closed_client_says_so(server):
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        remote.score(ROWS[0])
    with pytest.raises(ConfigError, match="closed"):
        remote.score(ROWS[0])


def test_a_bad_row_is_named(server):
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        with pytest.raises(DataError, match=r"row 2: .*role is str 'robot'"):
            list(remote.score_many([ROWS[0], [{"role": "robot", "content": "x"}]]))
        with pytest.raises(DataError, match="the conversation"):
            remote.score([])


def test_at_most_so_many_requests_at_once(server, monkeypatch):
    monkeypatch.setattr(completions, "_AT_ONCE", 3)
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        list(remote.score_many(ROWS * 4))
    assert 1 < server.most_at_once <= 3


WITHOUT_TORCH = """
import json, sys
hidden = {"torch", "scipy", "sklearn", "peft"}
def hide(find):
    return lambda name, *rest: None if name.split(".")[0] in hidden else find(name, *rest)
for finder in sys.meta_path:
    finder.find_spec = hide(finder.find_spec)
import alora
url, battery, base, row = sys.argv[1:]
with alora.Client(url, battery, base=base) as remote:
    print(json.dumps(remote.score(json.loads(row)).as_dict()))
assert not hidden & set(sys.modules)
"""


def test_no_torch_is_needed(server, here):
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_TORCH, server.url, store.battery(), store.base_folder()]
    run = subprocess.run([*map(str, command), json.dumps(ROWS[1])], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert [verdict["label"] for verdict in found["verdicts"]] == [verdict.label for verdict in here[1]]
    for one, other in zip(found["verdicts"], here[1], strict=True):
        assert one["probability"] == pytest.approx(other.probability, abs=1e-6)


def test_weights_are_not_read_into_memory(server, monkeypatch):
    monkeypatch.setattr("alora.adapter.folder.load_adapter", lambda folder: pytest.fail(f"{Path(folder)} was loaded"))
    with alora.Client(server.url, store.battery(), base=store.base_folder()) as remote:
        remote.score(ROWS[0])
