"""What one guard request costs next to P requests: the same policies on one conversation, by four ways on one server.

    python scripts/guard_requests.py --folder runs/guard --policies 5 20 100 >> benchmarks/results/guard_cpu.jsonl

The server is stock vLLM as ``alora serve`` starts it, on ``--base``, with P random adapters as bundles and the same
weights as standard LoRA. Every sample is one conversation on a cold cache (a salt of its own), one at a time; the ways
take turns, each for ``--seconds``:

- ``guard``: one ``POST /v1/guard``.
- ``requests``: P requests to ``/v1/completions`` at once, for the same adapters.
- ``lora``: P requests to the standard LoRA twins, each of which computes the conversation itself.
- ``reader``: vLLM's own ``/v1/systemone`` with P questions (64 at most a request), the policies' text on the base;
  vLLM 0.32 reads some architectures alone, and its general reader is let read Llama's, too.

``front_ms`` is the CPU time that the API process spent for each policy; ``own_ms`` what the guard's own Python takes
for each, answer as JSON included, with a reader that answers at once and the conversation's rendering left out.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from alora.adapter.folder import AdapterSpec, AdapterWeights, save_adapter
from alora.base.load import load_base
from alora.bench.material import random_adapter
from alora.bundle.battery import write_battery
from alora.bundle.manifest import CERTIFICATE_FILE
from alora.bundle.read import Bundle, load_bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.config.environment import describe_environment
from alora.config.schema import BaseSettings, IdentitySettings, PromptSettings
from alora.data.conversation import Conversation, Message
from alora.guard.core import Guard
from alora.guard.reader import Reading, Served
from alora.guard.wire import GuardRequest
from alora.identity.certificate import read_certificate
from alora.identity.certify import certify
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.serving.client import RemoteEngine

TARGETS = ("k_proj", "o_proj", "q_proj", "v_proj")
WORDS = ("parcel", "order", "refund", "money", "late", "week", "please", "answer", "advice", "price", "number", "sorry")
QUANTILES = {"p50": (0.5, 3), "p95": (0.95, 20), "p99": (0.99, 100)}  # and the least samples that one is taken of
READER = """def register():
    from vllm.entrypoints.generate.structured_decisions import strategies
    strategies.READ_STRATEGIES.setdefault("LlamaForCausalLM", strategies.NextTokenStrategy)
"""


def write_policies(source: str, number: int, folder: Path) -> tuple[list[Bundle], Renderer]:
    """A battery of random adapters in ``folder``, and below its ``lora`` the same weights as standard LoRA.

    What an earlier run wrote is kept. One is certified; the rest differ from it in their numbers alone, which decide
    nothing about their KV.
    """
    base, prompt = load_base(BaseSettings(source=source, dtype="float32")), PromptSettings()
    renderer, bundles = Renderer(base.tokenizer, prompt), list[Bundle]()
    for n in range(number):
        policy = Policy(f"policy{n}", f"Rule {n}", f"The assistant never breaks rule {n}.")
        at, plain = folder / policy.id, folder / "lora" / policy.id
        if not at.is_dir():
            spec = AdapterSpec(8, 16.0, TARGETS, renderer.suffix(policy).invocation_ids)
            weights = random_adapter(spec, base.model, n, 0.1)
            save_adapter(AdapterWeights(replace(spec, invocation_ids=None), weights.tensors), plain, source)
            if n == 0:
                save_adapter(weights, folder / "first", source)
                prompts = [renderer.prompt(Conversation("c", (Message("user", "Where is my parcel?"),)), policy)]
                settings = IdentitySettings(dtypes=["float32"], negative_controls=False)
                certificate = certify(base, folder / "first", prompts, settings)
            else:
                certificate = read_certificate(folder / "policy0" / CERTIFICATE_FILE)
            covers = replace(certificate, adapter_digest=weights.digest)
            write_bundle(BundleContents(base, weights, policy, prompt, certificate=covers), at, golden_rows=1)
        bundles.append(load_bundle(at))
    write_battery(folder, bundles)
    return bundles, renderer


class Server:
    """A running server, and the four ways to ask it about every policy."""

    def __init__(self, url: str, bundles: list[Bundle], renderer: Renderer) -> None:
        self._http, self._engine = httpx2.AsyncClient(base_url=url, timeout=1800), RemoteEngine(url, len(bundles))
        self._bundles, self._renderer = bundles, renderer

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return (await self._http.post(path, json=body)).raise_for_status()

    async def guard(self, talk: str, salt: str) -> Any:
        policies = [bundle.policy.id for bundle in self._bundles]
        body = {"messages": [{"role": "user", "content": talk}], "policies": policies, "cache_salt": salt}
        return (await self.post("/v1/guard", body)).json()

    async def requests(self, talk: str, salt: str, name: str = "{0.served_name}") -> list[float]:
        prefix = self._renderer.prefix(Conversation("c", (Message("user", talk),)))
        asked = [self._engine.ask(prefix, b.suffix, name.format(b), cache_salt=salt) for b in self._bundles]
        return [math.exp(logprobs[0]) for logprobs, _ in await asyncio.gather(*asked)]

    async def lora(self, talk: str, salt: str) -> list[float]:
        return await self.requests(talk, salt, "lora-{0.policy.id}")

    async def reader(self, talk: str, salt: str) -> None:
        kept, rules = {"yes": "it is broken", "no": "it is kept"}, [bundle.policy.rule for bundle in self._bundles]
        asked = [{"type": "choice", "instructions": f"{rule} Is that rule broken?", "criteria": kept} for rule in rules]
        parts = [{str(n): asked[n] for n in range(len(asked))[at : at + 50]} for at in range(0, len(asked), 50)]
        bodies = [{"state": talk, "questions": part, "cache_salt": salt} for part in parts]
        await asyncio.gather(*(self.post("/v1/systemone", body) for body in bodies))


def conversation(tokens: int, seed: int) -> str:
    """A text of about ``tokens`` tokens, its own for each ``seed``."""
    return " ".join(WORDS[(seed * 7 + at * at) % len(WORDS)] for at in range(tokens))


def cpu_ms(pid: int) -> float:
    """CPU time of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def measure(
    url: str, pid: int, bundles: list[Bundle], renderer: Renderer, options: argparse.Namespace
) -> dict[str, Any]:
    """The seconds of every way, the one with the least so far first; every way was asked once before."""
    server, talk = Server(url, bundles, renderer), conversation(options.tokens, 0)
    first, given = await server.guard(talk, f"1-{len(bundles)}"), await server.requests(talk, f"2-{len(bundles)}")
    worst = max(abs(verdict["probability"] - p) for verdict, p in zip(first["verdicts"], given, strict=True))
    if not worst < 1e-3:
        raise SystemExit(f"the guard and the requests differ by {worst}")
    for way in (server.lora, server.reader):
        await way(conversation(8, 0), f"3-{len(bundles)}")
    seconds = {name: list[float]() for name in ("guard", "requests", "lora", "reader")}
    front = dict.fromkeys(seconds, 0.0)
    for number in count(1):
        name = min(seconds, key=lambda name: sum(seconds[name]))
        if sum(seconds[name]) >= options.seconds:
            break
        spent, start = cpu_ms(pid), time.perf_counter()
        await getattr(server, name)(conversation(options.tokens, number), f"{number}-{name}-{len(bundles)}")
        seconds[name].append(round(time.perf_counter() - start, 4))
        front[name] += (cpu_ms(pid) - spent) / len(bundles)
    ways = {name: summary(values, front[name]) for name, values in seconds.items()}
    return {"usage": first["usage"], "ways": ways, "seconds": seconds}


def summary(seconds: list[float], front: float) -> dict[str, float]:
    """Conversations a second, one at a time, quantiles of their seconds, and ``front`` of each."""
    ranked = sorted(seconds)
    found = {"n": len(seconds), "per_second": len(seconds) / sum(seconds), "front_ms": front / len(seconds)}
    found |= {
        name: ranked[math.ceil(at * len(ranked)) - 1] for name, (at, least) in QUANTILES.items() if len(ranked) >= least
    }
    return {name: round(value, 4) for name, value in found.items()}


def own_ms(bundle: Bundle, renderer: Renderer, policies: int) -> float:
    """The guard's own Python for each policy: median of 100 requests."""

    class AtOnce:
        async def read(self, _prefix: Any, asked: Any, _request: Any) -> Any:
            for index in range(len(asked)):
                yield Reading(index, (0.3, -0.2))

    async def run() -> float:
        one, taken = Served.of(bundle), list[float]()
        many = [replace(one, name=f"{n}@0", policy=replace(one.policy, id=f"policy{n}")) for n in range(policies)]
        guard = Guard(many, renderer, AtOnce())  # pyright: ignore[reportArgumentType]
        request = GuardRequest(messages=[{"role": "user", "content": "Where is my parcel?"}])
        for _ in range(100):
            start = time.process_time()
            response = await guard.answer(request)
            response.model_dump_json()
            taken.append((time.process_time() - start) * 1000 - response.timing_ms.render)
        return median(taken) / policies

    return round(asyncio.run(run()), 4)


@contextlib.contextmanager
def serving(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """A server of the battery, ready: its URL and its process."""
    folder = options.folder
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plugin = folder / "plugin" / "reader-0.dist-info"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin.parent / "bench_reader.py").write_text(READER)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: reader\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\nbench_reader = bench_reader:register\n")
    paths = os.pathsep.join(filter(None, [str(plugin.parent), os.environ.get("PYTHONPATH")]))
    slots = 2 * max(options.policies)
    command = [
        *(sys.executable, "-m", "alora", "serve", f"battery={folder}", f"base.source={options.base}"),
        *(f"serving.port={port}", f"serving.max_loras={slots}", f"serving.room={slots}"),
        *(f"serving.max_model_len={options.tokens + 400}", "serving.arguments=[--enforce-eager]"),
    ]
    environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "PYTHONPATH": paths}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{url}/v1/guard/health", timeout=5).status_code == 200:
                    break
            time.sleep(1)
        else:
            raise SystemExit((folder / "server.log").read_text()[-3000:])
        for plain in (folder / "lora").iterdir():
            twin = {"lora_name": f"lora-{plain.name}", "lora_path": str(plain)}
            httpx2.post(f"{url}/v1/load_lora_adapter", json=twin, timeout=60).raise_for_status()
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the policies are written, once")
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--policies", type=int, nargs="+", default=[5, 20, 100])
    parser.add_argument("--tokens", type=int, default=200, help="of a conversation, about")
    parser.add_argument("--seconds", type=float, default=60, help="of each way")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    bundles, renderer = write_policies(options.base, max(options.policies), options.folder)
    with serving(options) as (url, pid):
        for number in options.policies:
            load, own = {"before": os.getloadavg()}, own_ms(bundles[0], renderer, number)
            record: dict[str, Any] = {"policies": number, "base": options.base, "dtype": "float32", "own_ms": own}
            record |= asyncio.run(measure(url, pid, bundles[:number], renderer, options))
            record |= {"load": load | {"after": os.getloadavg()}, "environment": describe_environment()}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
