"""What one guard request costs next to P requests: the same policies on one conversation, by four ways on one server.

    python scripts/guard_requests.py --out benchmarks/results/guard_cpu.json

The server is stock vLLM as ``alora serve`` starts it, on ``--base``, with P random adapters as bundles and the same
weights as standard LoRA. Every way reads the same conversation on a cold cache (a salt of its own), by turns:

- ``guard``: one ``POST /v1/guard``.
- ``requests``: P requests to ``/v1/completions`` at once, for the same adapters.
- ``lora``: P requests to the standard LoRA twins, each of which computes the conversation itself.
- ``reader``: one ``POST /v1/systemone`` with P questions, the policies' text on the base; where this vLLM has it.

``front_ms`` is the CPU time that the API process spent for each policy; ``own_ms`` what the guard's own Python takes
for each, with a reader that answers at once. The load of the machine before and after is part of the record.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from alora.adapter.folder import AdapterSpec, AdapterWeights, save_adapter
from alora.base.load import LoadedBase, load_base
from alora.bench.material import random_adapter
from alora.bundle.battery import load_battery, write_battery
from alora.bundle.read import Bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.config.environment import describe_environment
from alora.config.schema import BaseSettings, IdentitySettings, PromptSettings
from alora.data.conversation import Conversation, Message
from alora.guard.core import Guard
from alora.guard.reader import Reading, Served
from alora.guard.wire import GuardRequest
from alora.identity.certify import certify
from alora.policy import Policy
from alora.prompt.render import Renderer

TARGETS = ("k_proj", "o_proj", "q_proj", "v_proj")
WAYS = ("guard", "requests", "lora", "reader")
WORDS = ("parcel", "order", "refund", "money", "late", "week", "please", "answer", "advice", "price", "number", "sorry")


def write_policies(base: LoadedBase, count: int, folder: Path) -> list[Bundle]:
    """A battery of random adapters, and below ``lora`` the same weights as standard LoRA."""
    prompt, bundles = PromptSettings(max_prefix_tokens=2000), []
    renderer = Renderer(base.tokenizer, prompt)
    for number in range(count):
        policy = Policy(f"policy{number}", f"Rule {number} is broken", f"The assistant never breaks rule {number}.")
        suffix = renderer.suffix(policy)
        spec = AdapterSpec(8, 16.0, TARGETS, suffix.invocation_ids)
        weights = random_adapter(spec, base.model, number, 0.1)
        save_adapter(weights, folder / "adapter", base.source)
        probe = renderer.prompt(Conversation("c", (Message("user", "Where is my parcel?"),)), policy)
        settings = IdentitySettings(dtypes=["float32"], negative_controls=False)
        certificate = certify(base, folder / "adapter", [probe], settings)
        contents = BundleContents(base, weights, policy, prompt, certificate=certificate)
        bundles.append(write_bundle(contents, folder / policy.id, golden_rows=1))
        plain = AdapterWeights(replace(spec, invocation_ids=None), weights.tensors)
        save_adapter(plain, folder / "lora" / policy.id, base.source)
    write_battery(folder, bundles)
    return load_battery(folder)


@dataclass
class Server:
    """A running server, and the ways to ask it about the first ``count`` policies."""

    http: httpx2.AsyncClient
    bundles: list[Bundle]
    renderer: Renderer

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.http.post(path, json=body)
        if answer.status_code != 200:
            raise SystemExit(f"{path} answered {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    async def guard(self, talk: str, salt: str, count: int) -> list[float]:
        policies = [bundle.policy.id for bundle in self.bundles[:count]]
        body = {"messages": [{"role": "user", "content": talk}], "policies": policies, "cache_salt": salt}
        return [verdict["probability"] for verdict in (await self.post("/v1/guard", body))["verdicts"]]

    async def _completions(self, talk: str, salt: str, count: int, names: list[str]) -> list[float]:
        prefix = self.renderer.prefix(Conversation("c", (Message("user", talk),)))

        async def ask(bundle: Bundle, name: str) -> float:
            labels = list(bundle.suffix.label_token_ids)
            body = {"model": name, "prompt": [*prefix.token_ids, *bundle.suffix.token_ids], "cache_salt": salt}
            body |= {"max_tokens": 1, "temperature": 0, "logprobs": 2, "allowed_token_ids": labels}
            answer = await self.post("/v1/completions", body | {"return_tokens_as_token_ids": True})
            top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return float(top[f"token_id:{labels[0]}"])

        return list(await asyncio.gather(*map(ask, self.bundles[:count], names)))

    async def requests(self, talk: str, salt: str, count: int) -> list[float]:
        return await self._completions(talk, salt, count, [bundle.served_name for bundle in self.bundles[:count]])

    async def lora(self, talk: str, salt: str, count: int) -> list[float]:
        return await self._completions(talk, salt, count, [f"lora-{b.policy.id}" for b in self.bundles[:count]])

    async def reader(self, talk: str, salt: str, count: int) -> list[float]:
        questions = {
            bundle.policy.id: {
                "type": "choice",
                "instructions": f"{bundle.policy.rule} Is that rule broken?",
                "criteria": {"yes": "it is broken", "no": "it is kept"},
            }
            for bundle in self.bundles[:count]
        }
        await self.post("/v1/systemone", {"state": talk, "questions": questions, "cache_salt": salt})
        return []


def conversation(tokens: int, seed: int) -> str:
    """A text of about ``tokens`` tokens, its own for each ``seed``."""
    return " ".join(WORDS[(seed * 7 + at * at) % len(WORDS)] for at in range(tokens))


def cpu_seconds(pid: int) -> float:
    """CPU time of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server: Server, ways: list[str], count: int, options: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Seconds of each way, in rounds by turns, on a cold cache each; the first round is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    front: list[float] = []
    for number in range(options.rounds + 1):
        talk, given = conversation(options.tokens, number), {}
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            ask: Callable[[str, str, int], Awaitable[list[float]]] = getattr(server, way)
            spent, start = cpu_seconds(pid), time.perf_counter()
            given[way] = await ask(talk, f"{way}-{count}-{number}", count)
            if number:
                seconds[way].append(round(time.perf_counter() - start, 4))
                front += [(cpu_seconds(pid) - spent) * 1000 / count] if way == "guard" else []
        worst = max(abs(p - 2.718281828459045**q) for p, q in zip(given["guard"], given["requests"], strict=True))
        if worst > 1e-3:
            raise SystemExit(f"the guard and the requests differ by {worst}")
    return {
        "policies": count,
        "seconds": seconds,
        "medians": {way: median(values) for way, values in seconds.items()},
        "front_ms": round(median(front), 3),
    }


def own_ms(bundles: list[Bundle], renderer: Renderer, count: int) -> float:
    """The guard's own Python for each policy, its rendering of the conversation left out."""

    class AtOnce:
        async def read(self, _prefix: Any, asked: Any, _salt: Any, _priority: Any) -> Any:
            for index in range(len(asked)):
                yield Reading(index, (0.3, -0.2))

        async def load(self, *_: Any) -> None: ...
        async def unload(self, *_: Any) -> None: ...

    one = Served.of(bundles[0])
    many = [replace(one, name=f"{n}@0", policy=replace(one.policy, id=f"policy{n}")) for n in range(count)]

    async def run() -> float:
        guard = Guard(many, renderer, AtOnce())  # pyright: ignore[reportArgumentType]
        request = GuardRequest(messages=[{"role": "user", "content": "Where is my parcel?"}])
        taken = []
        for _ in range(50):
            start = time.process_time()
            response = await guard.answer(request)
            taken.append((time.process_time() - start) * 1000 - response.timing_ms.render)
        return median(taken) / count

    return round(asyncio.run(run()), 4)


async def run(url: str, pid: int, bundles: list[Bundle], renderer: Renderer, folder: Path, options: Any) -> list[Any]:
    async with httpx2.AsyncClient(base_url=url, timeout=1800, limits=httpx2.Limits(max_connections=256)) as http:
        server, ways = Server(http, bundles, renderer), list[str](WAYS)
        for bundle in bundles:
            name = bundle.policy.id
            path = str(folder / "lora" / name)
            await http.post("/v1/load_lora_adapter", json={"lora_name": f"lora-{name}", "lora_path": path})
        if (await http.post("/v1/systemone", json={})).status_code == 404:
            ways.remove("reader")
        cells = []
        for count in options.policies:
            cells.append(await measure(server, ways, count, options, pid))
            print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
        return cells


def started(folder: Path, options: Any) -> tuple[subprocess.Popen[bytes], str]:
    """A server of the battery, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    slots = 2 * max(options.policies)
    command = [
        *(sys.executable, "-m", "alora", "serve", f"battery={folder}", f"base.source={options.base}"),
        *(f"serving.port={port}", f"serving.max_loras={slots}", f"serving.room={slots}"),
        *(f"serving.max_model_len={options.tokens + 700}", "serving.arguments=[--enforce-eager]"),
    ]
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env={**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    )
    url = f"http://127.0.0.1:{port}"
    while True:
        if process.poll() is not None:
            raise SystemExit((folder / "server.log").read_text()[-3000:])
        try:
            if httpx2.get(f"{url}/v1/guard/health", timeout=5).status_code == 200:
                return process, url
        except httpx2.TransportError:
            pass
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--policies", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    before, folder = os.getloadavg(), Path(tempfile.mkdtemp(prefix="guard-requests-"))
    try:
        base = load_base(BaseSettings(source=options.base, dtype="float32"))
        bundles = write_policies(base, max(options.policies), folder)
        renderer = bundles[0].renderer(base)
        record: dict[str, Any] = {"own_ms": own_ms(bundles, renderer, 100), "base": options.base}
        print(json.dumps(record), file=sys.stderr, flush=True)
        process, url = started(folder, options)
        try:
            record["cells"] = asyncio.run(run(url, process.pid, bundles, renderer, folder, options))
        finally:
            process.terminate()
            process.wait(60)
    finally:
        shutil.rmtree(folder)
    record |= {"tokens": options.tokens, "environment": describe_environment()}
    record["load"] = {"before": before, "after": os.getloadavg(), "cores": os.cpu_count()}
    text = json.dumps(record, indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
