"""Three vLLM servers and a client that keeps each conversation on one of them, next to one that goes round.

It takes minutes, so it is run where somebody asks for it, and writes the figures of docs/scale_out.md:

    ALORA_AFFINITY=affinity.json pytest -q tests/vllm/test_affinity.py
"""

import json
import os
import random
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest

import alora
from alora.config.environment import describe_environment
from alora.wire.native import GuardResponse
from tests.vllm.guard_server import metric, start

pytestmark = [
    pytest.mark.skipif("ALORA_AFFINITY" not in os.environ, reason="takes minutes; name its output by ALORA_AFFINITY"),
    pytest.mark.timeout(3600),
]
SERVERS, CONVERSATIONS, TURNS, AT_ONCE = 3, int(os.environ.get("ALORA_AFFINITY_CONVERSATIONS", "300")), 4, 4
BLOCKS = 3 * CONVERSATIONS  # of 32 tokens; a conversation ends with 7, so a server holds 3 in 7 of all conversations
Ask = Callable[[Sequence[dict[str, str]]], GuardResponse]


class Seen:
    """Which servers answered which conversation, in order."""

    def __init__(self) -> None:
        self.by: dict[str, list[str]] = defaultdict(list)

    def watch(self, guard: alora.Guard) -> alora.Guard:
        async def heard(response) -> None:
            if response.status_code == 200:
                self.by[response.request.headers["x-session-id"]].append(f"http://{response.url.netloc.decode()}")

        for http in guard._wait.resource._http.values():
            http._client.event_hooks = {"response": [heard]}
        return guard


def talk(phase: str, number: int, turn: int) -> list[dict[str, str]]:
    texts = [f"{phase} {number}: order {number * 7 + at} is late, what now?" for at in range(2 * turn - 1)]
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def converse(ask: Ask, phase: str, before: Callable[[int], None] = lambda _: None) -> list[GuardResponse]:
    """All conversations turn by turn, each turn in another order; ``before`` hears how many requests were sent."""
    shuffle, sent, lock = random.Random(0).shuffle, 0, threading.Lock()

    def one(number: int, turn: int) -> GuardResponse:
        nonlocal sent
        with lock:
            sent += 1
            before(sent)
        return ask(talk(phase, number, turn))

    answers = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for turn in range(1, TURNS + 1):
            numbers = list(range(CONVERSATIONS))
            shuffle(numbers)
            answers += pool.map(one, numbers, [turn] * CONVERSATIONS)
    return answers


def measured(servers, run: Callable[[], list[GuardResponse]]) -> tuple[list[GuardResponse], dict[str, float]]:
    """The answers, and what the engines counted meanwhile."""
    names = {"queried": "vllm:prefix_cache_queries_total", "hit": "vllm:prefix_cache_hits_total"}

    def counted() -> dict[str, float]:
        return {short: sum(metric(server, name) for server in servers) for short, name in names.items()}

    before, answers, after = counted(), run(), counted()
    found = {name: after[name] - before[name] for name in names}
    computed = sum(answer.usage.computed_tokens for answer in answers)
    return answers, {**found, "hit_rate": round(found["hit"] / found["queried"], 4), "computed_tokens": computed}


def test_conversations_stay_and_a_server_that_is_killed_loses_none(tmp_path):
    arguments = f"--enforce-eager,--num-gpu-blocks-override,{BLOCKS},--enable-prompt-tokens-details"
    record: dict = {"conversations": CONVERSATIONS, "turns": TURNS, "servers": SERVERS, "blocks": BLOCKS,
                    "environment": describe_environment()}  # fmt: skip
    with ExitStack() as stack:
        stack.callback(lambda: Path(os.environ["ALORA_AFFINITY"]).write_text(json.dumps(record, indent=2) + "\n"))
        servers = []
        for number in range(SERVERS):
            (tmp_path / str(number)).mkdir()
            servers.append(stack.enter_context(start(tmp_path / str(number), arguments=arguments)))
        urls = [server.url for server in servers]

        each = cycle([stack.enter_context(alora.Guard(url)) for url in urls])
        turn_by_turn = threading.Lock()

        def go_round(messages: Sequence[dict[str, str]]) -> GuardResponse:
            with turn_by_turn:
                guard = next(each)
            return guard.check(messages)

        answers, record["round_robin"] = measured(servers, lambda: converse(go_round, "round"))
        assert all(answer.complete for answer in answers)

        seen = Seen()
        guard = seen.watch(stack.enter_context(alora.Guard(urls)))
        answers, record["affinity"] = measured(servers, lambda: converse(guard.check, "stays"))
        assert all(answer.complete for answer in answers)
        homes = {session: set(where) for session, where in seen.by.items()}
        assert len(homes) == CONVERSATIONS
        assert {len(where) for where in homes.values()} == {1}
        record["affinity"]["conversations_by_server"] = [sum(url in where for where in homes.values()) for url in urls]
        assert record["affinity"]["hit_rate"] > record["round_robin"]["hit_rate"]

        gone, at = servers[0], CONVERSATIONS * 3 // 2  # in the middle of the second turn

        def kill(sent: int) -> None:
            if sent == at:
                core = subprocess.run(["pgrep", "-P", str(gone.process.pid)], capture_output=True, text=True)
                for process in [gone.process.pid, *map(int, core.stdout.split())]:
                    os.kill(process, signal.SIGKILL)

        seen = Seen()
        guard = seen.watch(stack.enter_context(alora.Guard(urls)))
        answers = converse(guard.check, "moves", kill)
        assert len(answers) == CONVERSATIONS * TURNS
        assert all(answer.complete for answer in answers)
        own = {session for session, where in seen.by.items() if gone.url in where}
        moved = {session for session, where in seen.by.items() if len(set(where)) > 1}
        assert own
        assert moved == own
        for where in seen.by.values():
            assert where == sorted(where, key=lambda url: url != gone.url)  # there first, then elsewhere
            assert len(set(where) - {gone.url}) == 1  # and always at the same place
        record["killed"] = {"at_request": at, "requests": len(answers), "failed": 0, "its_conversations": len(own),
                            "moved": len(moved)}  # fmt: skip
