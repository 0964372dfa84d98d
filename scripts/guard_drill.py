"""Drills of a guard that serves: a burst, folders that change under it, two versions, a stop while it works.

    python -m scripts.guard_drill BATTERY base.source=FOLDER serving.scorer=packed

What follows BATTERY are settings of ``alora serve``. One server of a copy of the battery, and for the versions another,
go through the drills, each of which prints a line of JSON. vLLM's engine is stopped for four seconds while 12 requests
wait for it, and SIGTERM comes in between; packed, which has no engine apart, is sent SIGTERM after the first answer.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from alora.bundle.read import load_battery
from alora.config.secrets import ADMIN_KEY

CLIENTS, RUNNING, PATIENCE_S = 200, 12, 900
ADMIN = {"X-Alora-Admin-Key": "drill"}
WORDS = "My parcel is late and nobody answers the phone. "


class Server:
    """``alora serve`` on a port of this machine."""

    def __init__(self, battery: Path, settings: Sequence[str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "alora", "serve", f"battery={battery}", *settings, f"serving.port={port}"]
        with log.open("wb") as sink:
            environment = os.environ | {ADMIN_KEY: ADMIN["X-Alora-Admin-Key"]}
            self.process = subprocess.Popen(command, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        end = time.monotonic() + PATIENCE_S
        while self.health()[0] != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.terminate()
                raise SystemExit(f"{log.read_text()[-4000:]}\nthe server does not answer")
            time.sleep(0.5)

    def health(self) -> tuple[int | None, str]:
        """Status and trouble."""
        try:
            answer = httpx.get(f"{self.url}/v1/guard/health", timeout=30)
        except httpx.TransportError:
            return None, ""
        return answer.status_code, answer.json().get("trouble", "")

    def metric(self, name: str) -> list[str]:
        return [line for line in httpx.get(f"{self.url}/metrics").text.splitlines() if line.startswith(name)]

    def engines(self) -> list[int]:
        """vLLM's engine core is a child of the server."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(child) for child in found.stdout.split()]


@contextlib.contextmanager
def serving(battery: Path, settings: Sequence[str]) -> Iterator[tuple[Server, Path]]:
    """A server of a copy of ``battery``, and the copy."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(battery, Path(scratch) / "battery")
        server = Server(copy, settings, Path(scratch) / "log")
        try:
            yield server, copy
        finally:
            server.process.terminate()
            server.process.wait(90)


async def ask_all(url: str, count: int, first: int = 0) -> list[tuple[int | None, float, str]]:
    """Status, seconds and Retry-After of ``count`` different conversations, all sent at once."""
    limits = httpx.Limits(max_connections=None)

    async def ask(client: httpx.AsyncClient, number: int) -> tuple[int | None, float, str]:
        started = time.monotonic()
        body = {"messages": [{"role": "user", "content": f"Order {number}. {WORDS * 4}"}]}
        try:
            answer = await client.post("/v1/guard", json=body)
        except httpx.TransportError:
            return None, time.monotonic() - started, ""
        return answer.status_code, time.monotonic() - started, answer.headers.get("Retry-After", "")

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        return await asyncio.gather(*(ask(client, number) for number in range(first, first + count)))


def burst(server: Server, _: Path) -> dict[str, Any]:
    """200 clients at once: who gets an answer, and who a 429 with the time to come again."""
    asyncio.run(ask_all(server.url, 4))  # libraries set up what they do once
    answers = asyncio.run(ask_all(server.url, CLIENTS))
    waits = {code: max(taken for status, taken, _ in answers if status == code) for code, *_ in answers}
    return {
        "statuses": Counter(str(code) for code, *_ in answers),
        "longest_s": {str(code): round(wait, 2) for code, wait in waits.items()},
        "retry_after_s": sorted({int(after) for code, _, after in answers if code == 429}),
        "refused_by_metric": server.metric('alora_guard_refusals_total{status="429"}'),
        "afterwards": asyncio.run(ask_all(server.url, 1))[0][0],
    }


def stop(server: Server, _: Path) -> dict[str, Any]:
    """SIGTERM while 12 requests run."""

    async def run() -> list[tuple[int | None, float, str]]:
        engines = server.engines()
        for engine in engines:
            os.kill(engine, signal.SIGSTOP)
        asking = [asyncio.create_task(ask_all(server.url, 1, number)) for number in range(RUNNING)]
        await asyncio.wait(asking, timeout=2 if engines else None, return_when=asyncio.FIRST_COMPLETED)
        os.kill(server.process.pid, signal.SIGTERM)
        await asyncio.sleep(2 if engines else 0)
        for engine in engines:
            os.kill(engine, signal.SIGCONT)
        return [answer for one in await asyncio.gather(*asking) for answer in one]

    started, answers = time.monotonic(), asyncio.run(run())
    server.process.wait(PATIENCE_S)
    statuses = Counter(str(code) for code, *_ in answers)
    return {"statuses": statuses, "ended_after_s": round(time.monotonic() - started, 1)}


def changed_folder(server: Server, copy: Path) -> dict[str, Any]:
    """Weights with another byte, put back, and a folder that is gone; on vLLM's own route, the adapter's answer."""
    bundle, found = load_battery(copy)[0], dict[str, Any]()
    weights = bundle.folder / "adapter_model.safetensors"
    whole = weights.read_bytes()

    def note(what: str) -> None:
        guard = asyncio.run(ask_all(server.url, 1))[0][0]
        body = {"model": bundle.served_name, "prompt": list(bundle.suffix.token_ids), "max_tokens": 1}
        own = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)
        status, trouble = server.health()
        found[what] = {"health": status, "trouble": trouble, "metric": server.metric("alora_guard_trouble")}
        found[what] |= {"guard": guard, "completions": own.status_code}

    note("whole")
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    note("one byte")
    weights.write_bytes(whole)
    note("put back")
    aside = bundle.folder.rename(copy.parent / "aside")
    note("gone")
    aside.rename(bundle.folder)
    return found


def versions(one: Server, two: Server, copy: Path) -> dict[str, Any]:
    """Two replicas, of which one is given another threshold of the first policy."""
    bundle = load_battery(copy)[0]
    point = replace(bundle.manifest.operating_point, threshold=0.01)
    new = shutil.copytree(bundle.folder, copy / "v2")
    (new / "alora.json").write_text(replace(bundle.manifest, operating_point=point).to_json())
    url = f"{two.url}/v1/guard/policies/{bundle.policy.id}"
    put = httpx.put(url, json={"bundle": "v2"}, headers=ADMIN, timeout=300)
    name = f'alora_guard_served_created_seconds{{action="block",adapter="{bundle.served_name}"'
    lines = [line for server in (one, two) for line in server.metric(name) if not line.endswith(" 0.0")]
    return {"put": put.status_code, "versions_by_metric": sorted(re.findall(r'manifest="(\w+)"', "".join(lines)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("battery", type=Path)
    parser.add_argument("settings", nargs="*", help="of alora serve")
    given = parser.parse_intermixed_args()

    def show(name: str, found: dict[str, Any]) -> None:
        print(json.dumps({name: found}), flush=True)

    with serving(given.battery, given.settings) as (one, copy):
        show("burst", burst(one, copy))
        show("changed_folder", changed_folder(one, copy))
        with serving(given.battery, given.settings) as (two, other):
            show("versions", versions(one, two, other))
        show("stop", stop(one, copy))


if __name__ == "__main__":
    main()
