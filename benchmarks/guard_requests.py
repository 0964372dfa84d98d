"""What one ``POST /v1/guard`` costs next to P requests, on one server: ``alora bench serving`` over HTTP.

    python benchmarks/guard_requests.py base=smollm2 base.dtype=bfloat16 'bench.policies=[5]' bench.rounds=50

Settings are those of ``alora bench``; ``bench.battery=DIR`` takes bundles of yours.
The server is stock vLLM as ``alora serve`` starts it, with P bundles and the same weights as standard LoRA. Each run is
one conversation under a salt of its own, so on a cold cache:

- ``guard``: one ``POST /v1/guard``.
- ``alora``: P requests to ``/v1/completions`` at once, for the same adapters.
- ``lora``: requests to the standard LoRA twins, each of which computes the conversation itself.
- ``reader``: vLLM's own ``/v1/systemone``, the policies' text on the base; vLLM reads some architectures alone, and its
  general reader is let read all others, too.

Seconds are the client's; ``front`` is the CPU time that the API process spent.
"""

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from alora.adapter.folder import save_adapter
from alora.base.load import load_base
from alora.base.stored import load_tokenizer
from alora.bundle.battery import write_battery
from alora.bundle.read import Bundle, load_battery
from alora.bundle.write import BundleContents, write_bundle
from alora.commands.bench import run
from alora.config.compose import load_recipe
from alora.config.schema import BaseSettings, BenchSettings, IdentitySettings, PromptSettings
from alora.config.secrets import KEY, key_in
from alora.data.conversation import Conversation, Message
from alora.errors import CheckFailed, ConfigError
from alora.identity.certify import certify
from alora.lab.bench.harness import Context
from alora.lab.bench.material import SERVED_SCALE, Material, adapter_spec, random_adapter
from alora.lab.bench.serving import ServingBench, make_material
from alora.lab.bench.shapes import shape_of
from alora.lab.bench.systems import System
from alora.lab.bench.trials import Agreement, Cell, Piece, Result, Run
from alora.policy import Policy
from alora.prompt.render import Renderer, Suffix
from alora.text import note

DEFAULTS = ("bench.prefixes=[1000]", "bench.policies=[5,20,100]", "bench.rounds=20", "bench.serving.lora_tokens=1000")
SCALE = SERVED_SCALE / 4  # so that golden rows agree in 16 bits, too, which the guard asks for
WORDS = ("parcel", "order", "refund", "money", "late", "week", "please", "answer", "advice", "price", "number", "sorry")
ROOM = 400  # tokens of a prompt besides the conversation: the template, and the reader's question
QUESTIONS = 50  # of one request to /v1/systemone, which takes 64
SILENCE_S = 1800.0
READER = """def register():
    from vllm.entrypoints.generate.structured_decisions import strategies
    strategies.READ_STRATEGIES.setdefault({!r}, strategies.NextTokenStrategy)
"""


class GuardBench(ServingBench):
    """See the module."""

    def _start(self) -> str:
        context, settings = self._context, self._settings
        if settings.battery is None and context.base.source is None:
            raise ConfigError("the guard reads text: add base.source=smollm2 (or another), or bench.battery=DIR")
        context.clock.cpu = False  # what works is another process
        battery = Path(settings.battery or random_battery(settings, context.base, context.scratch / "battery"))
        material = make_material(context, replace(settings, battery=str(battery)))
        named = str(settings.battery or context.base.source)
        self.material = replace(material, base=replace(material.base, name=named))
        bundles = load_battery(battery)[: max(settings.policies)]
        renderer = bundles[0].manifest.renderer(load_tokenizer(bundles[0].base_settings(context.base)))
        self._server = Server(context, self.material, battery, bundles)
        for size in settings.prefixes:
            talk = " ".join(random.Random(f"{settings.seed} {size}").choices(WORDS, k=size))
            prefix = renderer.prefix(Conversation("bench", (Message("user", talk),)))
            self._server.talks[prefix.token_ids] = talk
        options = self._server.options | {"suffix": len(bundles[0].suffix.token_ids)}
        self.engine = {"name": "vllm's server", **{key: str(value) for key, value in options.items()}}
        names = [name for name in settings.serving.systems if name in ("alora", "lora", "reader")]
        if "reader" in names and importlib.util.find_spec("vllm.entrypoints.generate.structured_decisions") is None:
            self.engine["no reader"] = "this vLLM has no /v1/systemone"
            names.remove("reader")
        self.systems: dict[str, System] = {name: Way(name, self._server, self.material) for name in ("guard", *names)}
        return "guard"

    def conversation(self, tokens: int, seed: int = 0) -> tuple[int, ...]:
        return next(ids for ids in self._server.talks if len(ids) == tokens)

    def measure(self) -> None:
        with self._server.running():
            self._bursts("guard", list(map(len, self._server.talks)))

    def agreement(self, cell: Cell, system: str) -> list[Agreement]:
        """The reader's prompts are its own, so nobody can say what it should answer."""
        return [] if system == "reader" else super().agreement(cell, system)


def random_battery(settings: BenchSettings, given: BaseSettings, folder: Path) -> Path:
    """A battery of random adapters for the largest burst. One is certified; the rest differ from it in their numbers
    alone, which decide nothing about their KV.
    """
    base, prompt, bundles = load_base(given), PromptSettings(), list[Bundle]()
    renderer, dtype = Renderer(base.tokenizer, prompt), base.model.dtype
    spec, certificate = adapter_spec(settings, shape_of(base.model.config)), None
    for n in range(max(settings.policies)):
        policy = Policy(f"policy{n}", f"Rule {n}", f"The assistant never breaks rule {n}.")
        invoked = replace(spec, invocation_ids=renderer.suffix(policy).invocation_ids)
        weights = random_adapter(invoked, base.model, settings.seed + 10 * n, SCALE, dtype)
        if certificate is None:
            save_adapter(weights, first := folder.with_name("certified"), base.source)
            prompts = [renderer.prompt(Conversation("bench", (Message("user", "Where is my parcel?"),)), policy)]
            only = IdentitySettings(dtypes=[str(dtype).removeprefix("torch.")], negative_controls=False)
            certificate = certify(base, first, prompts, only)
        covers = replace(certificate, adapter_digest=weights.digest)
        contents = BundleContents(policy, prompt, base=base, weights=weights, certificate=covers)
        bundles.append(write_bundle(contents, folder / policy.id, golden_rows=1))
    write_battery(folder, bundles)
    return folder


class Server:
    """Serves ``bundles`` and their standard LoRA twins while :meth:`running`; ``talks`` are the texts of prefixes."""

    def __init__(self, context: Context, material: Material, battery: Path, bundles: Sequence[Bundle]) -> None:
        self.bundles, self.talks = bundles, dict[tuple[int, ...], str]()
        self._twins, self._scratch = material.folders["lora"][: len(bundles)], context.scratch
        self.options = {
            "max_loras": 2 * len(bundles), "max_model_len": max(context.settings.prefixes) + ROOM,
            "arguments": "[--enforce-eager,--enable-prompt-tokens-details,"
            f"--max-num-batched-tokens,{context.settings.serving.step_tokens}]",
        }  # fmt: skip
        dtype = str(material.base.model.dtype).removeprefix("torch.")
        self._command = [
            *(sys.executable, "-P", "-m", "alora", "serve", f"battery={battery}", f"base.dtype={dtype}"),
            *([f"base.source={context.base.source}"] if context.base.source else []),
            *(f"serving.{key}={value}" for key, value in self.options.items()),
        ]
        (about := context.scratch / "reader-0.dist-info").mkdir()
        (about / "entry_points.txt").write_text("[vllm.general_plugins]\nbench_reader = bench_reader:register\n")
        architecture = (material.base.model.config.architectures or [""])[0]
        (context.scratch / "bench_reader.py").write_text(READER.format(architecture))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The server, ready; CheckFailed if it ended before it was."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        paths = os.pathsep.join(filter(None, [str(self._scratch), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "PYTHONPATH": paths}
        with (self._scratch / "log").open("wb") as log:
            command = [*self._command, f"serving.port={port}"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        key, limits = key_in(KEY), httpx2.Limits(keepalive_expiry=2)  # vLLM closes an idle connection after 5
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, limits=limits, timeout=SILENCE_S
        )
        try:
            with asyncio.Runner() as runner:
                self.wait = runner.run
                self.wait(self._until_ready())
                yield
        finally:
            self._process.terminate()
            self._process.wait(60)

    async def _until_ready(self) -> None:
        status, text = 0, ""
        while status != 200:
            if self._process.poll() is not None:
                raise CheckFailed(f"the server ended: {(self._scratch / 'log').read_text(errors='replace')[-3000:]}")
            if "the guard is not served" in text:  # golden rows differ, say: it will not be
                raise CheckFailed(text)
            await asyncio.sleep(1)
            with contextlib.suppress(httpx2.HTTPError):
                answer = await self._http.get("/v1/guard/health", timeout=5)
                status, text = answer.status_code, answer.text
        for number, folder in enumerate(self._twins):
            await self._post("/v1/load_lora_adapter", {"lora_name": f"lora{number}", "lora_path": str(folder)})

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the API process so far, by Linux's name for another process's clock."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    async def _post(self, path: str, body: dict[str, Any]) -> str:
        answer = await self._http.post(path, json=body)
        if answer.status_code != 200:
            raise CheckFailed(f"{path} answered {answer.status_code}: {answer.text[:300]}")
        return answer.text

    async def ask(
        self, way: str, prefix: tuple[int, ...], policies: Sequence[int], salt: str
    ) -> Sequence[tuple[Sequence[float], int]]:
        """Label scores of each policy, and the prompt's tokens that it found in the cache."""
        asked = [self.bundles[policy] for policy in policies]
        if way == "reader":
            return [(scores, 0) for scores in await self._read(asked, self.talks[prefix], salt)]
        if way != "guard":
            names = [f"lora{n}" if way == "lora" else one.served_name for n, one in zip(policies, asked, strict=True)]
            pairs = zip(names, [one.suffix for one in asked], strict=True)
            return await asyncio.gather(*(self._complete(name, prefix, suffix, salt) for name, suffix in pairs))
        body = {"messages": [{"role": "user", "content": self.talks[prefix]}], "cache_salt": salt}
        answer = json.loads(await self._post("/v1/guard", body | {"policies": [one.policy.id for one in asked]}))
        usage, others = answer["usage"], max(1, len(asked) - 1)
        hit = len(asked) * usage["prefix_tokens"] + usage["suffix_tokens"] - usage["computed_tokens"]
        hits = [0, *(hit // others + (n < hit % others) for n in range(others))][-len(asked) :]  # it tells the sum
        return [
            (_logits(verdict["probabilities"], one), found)
            for one, verdict, found in zip(asked, answer["verdicts"], hits, strict=True)
        ]

    async def _complete(self, name: str, prefix: tuple[int, ...], suffix: Suffix, salt: str) -> tuple[list[float], int]:
        """Log-probabilities over the labels of the adapter ``name``, and the prompt's tokens found in the cache."""
        labels = list(suffix.label_token_ids)
        body = {
            "model": name,
            "prompt": [*prefix, *suffix.token_ids],
            "max_tokens": 1,
            "temperature": 0,
            "repetition_penalty": 1,  # else the server takes it from the base's generation_config.json
            "logprobs": len(labels),
            "allowed_token_ids": labels,
            "return_tokens_as_token_ids": True,
            "cache_salt": salt,
        }
        answer = json.loads(await self._post("/v1/completions", body))
        (top,) = answer["choices"][0]["logprobs"]["top_logprobs"]
        details = answer["usage"].get("prompt_tokens_details") or {}
        return [top[f"token_id:{label}"] for label in labels], details.get("cached_tokens") or 0

    async def _read(self, asked: Sequence[Bundle], talk: str, salt: str) -> list[list[float]]:
        kept = {"yes": "it is broken", "no": "it is kept"}
        questions = [
            (one.policy.id, {"type": "choice", "instructions": f"{one.policy.rule} Is it broken?", "criteria": kept})
            for one in asked
        ]
        parts = [dict(questions[at : at + QUESTIONS]) for at in range(0, len(questions), QUESTIONS)]
        bodies = [{"state": talk, "questions": part, "cache_salt": salt} for part in parts]
        answered = await asyncio.gather(*(self._post("/v1/systemone", body) for body in bodies))
        answers = {name: answer for text in answered for name, answer in json.loads(text)["answers"].items()}
        return [[_log(answers[one.policy.id]["probabilities"][word]) for word in kept] for one in asked]


def _logits(probabilities: Mapping[str, float], bundle: Bundle) -> list[float]:
    """The logits that calibrated probabilities were made of, up to a constant."""
    point = bundle.calibration
    logs = [_log(probabilities[label]) for label in bundle.policy.labels]
    return [point.temperature * log for log in (logs[0] - point.bias, *logs[1:])]


def _log(probability: float) -> float:
    return math.log(probability or sys.float_info.min)


@dataclass
class Way(System):
    """A system over HTTP."""

    name: str
    server: Server
    material: Material
    keeps: bool = True
    _salt: int = 0

    def forget(self) -> None:
        self._salt += 1

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        server, spent, start = self.server, self.server.cpu_s, time.perf_counter()
        answers = server.wait(server.ask(self.name, prefix_ids, policies, f"{self.name} {self._salt}"))
        seconds, front, results = time.perf_counter() - start, server.cpu_s - spent, list[Result]()
        for policy, (scores, hit) in zip(policies, answers, strict=True):
            # the reader does not say how many of its tokens it found
            own = Piece("in its own words", policy, 0) if self.name == "reader" else None
            piece = own or self.material.piece(prefix_ids, policy)
            results.append(Result(piece, 0.0, hit, tuple(scores)))
        return Run.of(seconds, seconds, results, front=front)


def main() -> None:
    recipe = load_recipe("bench", ["serving", *DEFAULTS, *sys.argv[1:]], note)
    if recipe is not None:
        serving = replace(recipe.bench.serving, workloads=["guard"])
        sys.exit(run(replace(recipe, bench=replace(recipe.bench, serving=serving)), GuardBench))


if __name__ == "__main__":
    main()
