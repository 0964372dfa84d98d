"""Three vLLM servers and a client that keeps each conversation on one of them, next to one that goes round.

The figures of docs/scale_out.md, on the toy bundles of the tests; it takes minutes:

    python -m benchmarks.affinity affinity.json
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import alora
from alora.config.environment import describe_environment
from alora.wire.native import GuardResponse
from tests.vllm.guard_server import metric, start

SERVERS, CONVERSATIONS, TURNS, AT_ONCE = 3, 300, 4, 4
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


def measured(servers, run: Callable[[], list[GuardResponse]]) -> tuple[list[GuardResponse], dict[str, Any]]:
    """The answers, and what the engines counted meanwhile."""
    names = {"queried": "vllm:prefix_cache_queries_total", "hit": "vllm:prefix_cache_hits_total"}

    def counted() -> dict[str, float]:
        return {short: sum(metric(server, name) for server in servers) for short, name in names.items()}

    before, answers, after = counted(), run(), counted()
    found = {name: after[name] - before[name] for name in names}
    computed = sum(answer.usage.computed_tokens for answer in answers)
    return answers, {**found, "hit_rate": round(found["hit"] / found["queried"], 4), "computed_tokens": computed}


def moves(seen: Seen, gone: str) -> tuple[set[str], set[str]]:
    """The conversations of a server that is gone, and those that moved: the same ones, each to one other place."""
    own = {session for session, where in seen.by.items() if gone in where}
    moved = {session for session, where in seen.by.items() if len(set(where)) > 1}
    assert own
    assert moved == own
    for where in seen.by.values():
        assert where == sorted(where, key=lambda url: url != gone)  # there first, then elsewhere
        assert len(set(where) - {gone}) == 1  # and always at the same place
    return own, moved


def main(output: Path, folder: Path) -> None:
    """Conversations stay, and a server that is killed loses none."""
    arguments = f"--enforce-eager,--num-gpu-blocks-override,{BLOCKS},--enable-prompt-tokens-details"
    record: dict = {"conversations": CONVERSATIONS, "turns": TURNS, "servers": SERVERS, "blocks": BLOCKS,
                    "environment": describe_environment()}  # fmt: skip
    with ExitStack() as stack:
        stack.callback(lambda: output.write_text(json.dumps(record, indent=2) + "\n"))
        servers = []
        for number in range(SERVERS):
            (folder / str(number)).mkdir()
            servers.append(stack.enter_context(start(folder / str(number), arguments=arguments)))
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
        own, moved = moves(seen, gone.url)
        record["killed"] = {"at_request": at, "requests": len(answers), "failed": 0, "its_conversations": len(own),
                            "moved": len(moved)}  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]), Path(scratch))
