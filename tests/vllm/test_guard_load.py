"""Mixed load on the guard in stock vLLM's server, opt-in: ``ALORA_LOAD_SECONDS=600 pytest -s`` of this file.

Askers under several salts, with and without deadlines, clients that go away, a policy that is replaced all the time.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import httpx2
import numpy as np
import pytest

from alora.bundle.read import load_battery
from alora.data.conversation import parse_conversation
from alora.guard.reader import Served
from alora.prefix.scorer import Scorer
from alora.verdict import make_verdict
from tests.vllm import bundles as store
from tests.vllm.guard_server import TOLERANCE, metric, start

SECONDS = float(os.environ.get("ALORA_LOAD_SECONDS", "0"))
ADMIN = {"X-Alora-Admin-Key": "admin"}
GROWTH = 0.05  # of a process's memory over the last two thirds of the time, by a line through the samples
SAMPLES = 60
TALKS = [
    [{"role": "user", "content": f"Parcel {number} is late. " * 8}, {"role": "assistant", "content": "A refund."}]
    for number in range(4)
]  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not SECONDS, reason="takes as long as ALORA_LOAD_SECONDS says"),
    pytest.mark.timeout(SECONDS + 600),
]


def memory_mb(pid):
    """What a process and those that it started have allocated; pages of libraries come and go as the machine likes."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {f"{lines['Name'].strip()} {pid}": int(lines["RssAnon"].split()[0]) / 1024}
    return {name: mb for one in (found, *map(memory_mb, map(int, children))) for name, mb in one.items()}


def probabilities(bundle):
    with Scorer(store.base(), [bundle.weights]) as scorer:
        for number, talk in enumerate(TALKS):
            prefix = bundle.renderer(store.base()).prefix(parse_conversation(talk, "test"))
            (logits_L,) = scorer.label_logits(prefix, [bundle.suffix])
            verdict = make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, "")
            yield (Served.of(bundle).name, number), verdict.probability


class Load:
    """What runs until ``end``, and what came of it."""

    def __init__(self, url, wanted, versions):
        self.wanted, self.versions, self.end = wanted, versions, time.monotonic() + SECONDS
        self.http = httpx2.AsyncClient(base_url=url, timeout=60)
        self.count, self.ids, self.adapters = Counter(), set(), set()

    def going(self):
        return time.monotonic() < self.end

    async def ask(self, dice):
        while self.going():
            number = dice.randrange(len(TALKS))
            body = {"messages": TALKS[number], "cache_salt": f"tenant {dice.randrange(5)}"}
            body |= dice.choice([{}, {}, {"policies": ["advice"]}, {"deadline_ms": 20}, {"stop_on_block": True}])
            answer = (await self.http.post("/v1/guard", json=body)).raise_for_status().json()
            self.count["asked"] += 1
            self.ids.add(answer["id"])
            for verdict in answer["verdicts"]:
                self.count[verdict["status"]] += 1
                if verdict["status"] == "ok":
                    self.adapters.add(verdict["adapter"])
                    assert verdict["probability"] == pytest.approx(
                        self.wanted[verdict["adapter"], number], abs=TOLERANCE
                    )
                else:
                    assert (verdict["status"], verdict["flagged"]) in (("missed", True), ("skipped", False))

    async def go_away(self, dice):
        while self.going():
            try:
                body = {"messages": dice.choice(TALKS), "cache_salt": f"gone {self.count['gone']}"}
                await asyncio.wait_for(self.http.post("/v1/guard", json=body), dice.uniform(0.005, 0.05))
            except TimeoutError:
                self.count["gone"] += 1
            await asyncio.sleep(0.1)

    async def replace(self):
        for bundle in itertools.cycle(self.versions):
            if not self.going():
                return
            answer = await self.http.put("/v1/guard/policies/advice", json={"bundle": bundle}, headers=ADMIN)
            assert answer.status_code == 200, answer.text
            self.count["replaced"] += 1
            await asyncio.sleep(1)

    async def run(self, pid):
        seen, began = [], time.monotonic()

        async def look():
            for number in range(SAMPLES + 1):
                await asyncio.sleep(max(0, began + number / SAMPLES * SECONDS - time.monotonic()))
                seen.append(memory_mb(pid))

        askers = [self.ask(random.Random(seed)) for seed in range(3)]
        async with self.http:
            await asyncio.gather(look(), *askers, self.go_away(random.Random(9)), self.replace())
        return seen


def test_minutes_of_mixed_load_lose_nothing(tmp_path):
    """No answer is lost or another digest's, nothing is left running, and memory stays as it is."""
    battery = tmp_path / "battery"
    shutil.copytree(store.battery(), battery)
    more = [store.write(store.POLICIES[0], battery / f"v{seed}", seed=seed) for seed in (3, 4)]
    bundles = [*load_battery(battery), *more]
    wanted = dict(pair for bundle in bundles for pair in probabilities(bundle))
    versions = [*(str(bundle.folder.relative_to(battery)) for bundle in more), "advice"]
    with start(tmp_path, battery, ALORA_ADMIN_KEY="admin") as server:
        load = Load(server.url, wanted, versions)
        seen = asyncio.run(load.run(server.process.pid))
        late = {name: [one[name] for one in seen[SAMPLES // 3 :]] for name in seen[-1]}
        rises = {name: np.polyfit(np.linspace(0, 1, len(mb)), mb, 1)[0] for name, mb in late.items()}
        shown = {name: {"MB": [round(one.get(name, 0)) for one in seen], "rise": rises[name]} for name in late}
        print(json.dumps({"seconds": SECONDS, "counts": load.count, "processes": shown}))
        left = time.monotonic() + 30
        while metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting"):
            assert time.monotonic() < left
            time.sleep(0.1)
    assert len(load.ids) == load.count["asked"]
    assert len(load.adapters) == 4
    assert load.count["gone"]
    assert {name for name, rise in rises.items() if rise > GROWTH * late[name][0]} == set()
