"""The cells of ``scripts/gpu.py`` that are no command of their own: ``truth``, ``burst`` and ``score``."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from alora.activation import peft_offset
from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.config.schema import BenchSettings
from alora.lab.bench.harness import Clock
from alora.lab.bench.material import (
    INVOCATION,
    LABELS,
    POLICY_TOKENS,
    SERVED_SCALE,
    BenchBase,
    draw_suffix,
    random_adapter,
    random_material,
    token_ids,
)
from alora.lab.bench.reference import ask_references, gap, last_logits, of, peft_model
from alora.lab.bench.shapes import SHAPES, random_base
from alora.lab.bench.systems import BenchEngine, PackedScorer, VllmSystem
from alora.training.trl_engine import put_adapter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Keep = Callable[..., None]


def keeper(out: Path) -> Keep:
    """A function that keeps a row, prints it, and writes all of them to ``out``."""
    rows: list[dict[str, Any]] = []

    def keep(**row: Any) -> None:
        rows.append(row)
        print(json.dumps({key: value for key, value in row.items() if key != "answers"}), flush=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")

    return keep


def settings_of(shape: str, tokens: int, policies: int) -> BenchSettings:
    made = BenchSettings(
        shape=shape, rank=16, targets=["q_proj", "k_proj", "v_proj"], prefixes=[tokens], policies=[policies]
    )
    return replace(made, serving=replace(made.serving, workloads=["grid"], step_tokens=16384))


@torch.inference_mode()
def truth(shape: str, lengths: tuple[int, ...], policies: tuple[int, ...], keep: Keep) -> None:
    """The old record's base, its parameters cast alone, with both kinds of frequencies in it."""
    built = random_base(replace(SHAPES[shape], layers=1), DEVICE, torch.bfloat16, 0)
    keep(what="frequencies of a random base", dtype=str(rope_of(built).inv_freq.dtype))
    model = random_base(SHAPES[shape], DEVICE, torch.float32, 0)  # drawn as it was then
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    spec = AdapterSpec(16, 32.0, ("k_proj", "q_proj", "v_proj"), INVOCATION)
    numbers = (0, policies[-1] // 10, policies[-1] // 2)
    adapters = {n: random_adapter(spec, model, 10 * n, SERVED_SCALE, torch.bfloat16) for n in numbers}
    for kind in ("base", "alora", "lora"):
        own = spec if kind == "alora" else replace(spec, invocation_ids=None)
        asked: Any = model if kind == "base" else peft_model(model, own).eval()
        for tokens in lengths[:2]:
            gaps = []
            for policy, adapter in adapters.items():
                if kind != "base":
                    put_adapter(asked, AdapterWeights(own, adapter.tensors))
                gaps.append(rounded_from_right(asked, kind, SHAPES[shape].vocab, tokens, policy))
            keep(what="rounded from right", system=kind, tokens=tokens, policies=numbers, gaps=gaps)


def rounded_from_right(asked: Any, kind: str, vocab: int, tokens: int, policy: int) -> float:
    """Largest difference of a label's probability that rounded frequencies make in one request of the old record."""
    banned, rope = frozenset(INVOCATION), rope_of(asked)
    tail = token_ids(vocab, POLICY_TOKENS, -1 - policy, banned)
    tail = tail if kind == "base" else draw_suffix(vocab, 32, 1 + policy).token_ids
    prompt = token_ids(vocab, tokens, 1000, banned) + tail
    more = {"alora_offsets": [peft_offset(len(prompt), tokens)]} if kind == "alora" else {}
    right, answers = rope.inv_freq, []
    for frequencies in (right.to(torch.bfloat16), right):
        rope.inv_freq = frequencies
        answers.append(tuple(torch.softmax(last_logits(asked, prompt, **more)[list(LABELS)], 0).tolist()))
    return gap(*answers)


def rope_of(model: Any) -> Any:
    return next(module for name, module in model.named_modules() if name.endswith("rotary_emb"))


def bench_base(model: Any, shape: str, folder: str | None = None) -> BenchBase:
    return BenchBase(shape, model, SHAPES[shape], {}, folder)


def burst(shape: str, lengths: tuple[int, ...], policies: tuple[int, ...], keep: Keep) -> None:
    """One burst of each system on vLLM, and nothing but the reference exchanged."""
    tokens, asked = lengths[1], range(policies[1])
    settings = settings_of(shape, tokens, len(asked))
    model = random_base(SHAPES[shape], DEVICE, torch.bfloat16, 0)
    with tempfile.TemporaryDirectory() as scratch:
        made = random_material(settings, bench_base(model, shape), len(asked), Path(scratch))
        clock = Clock(DEVICE)
        engine, prefix, runs = BenchEngine(settings, made, clock), made.conversation(tokens, 1000), {}
        systems = {name: VllmSystem(name, engine, made) for name in ("base", "alora", "lora")}
        for name, system in [*systems.items(), ("again", systems["alora"])]:
            system.forget()
            system.load(asked)
            runs[name] = system.run(prefix, asked)
            keep(what="burst", system=name, cached=[one.cached_tokens for one in runs[name].results])
        pairs = zip(runs["alora"].results, runs.pop("again").results, strict=True)
        keep(what="aLoRA sent again", worst=max(gap(of(one), of(other)) for one, other in pairs))
        wanted = [(name, (prefix, policy)) for name in runs for policy in asked]
        right = rope_of(model).inv_freq
        for reference, frequencies in (("float32", right), ("rounded", right.to(torch.bfloat16))):
            rope_of(model).inv_freq = frequencies
            packed = PackedScorer(made, clock).run(prefix, asked)
            model.set_attn_implementation("sdpa")
            references = ask_references(made, wanted)
            for name, run in {**runs, "packed": packed}.items():
                answers = [((prefix, one.piece.policy), one) for one in run.results]
                keep(what="verdicts", reference=reference, **asdict(references.judge(name, answers)))


def score(shape: str, lengths: tuple[int, ...], policies: tuple[int, ...], keep: Keep) -> None:
    """Wall milliseconds of the packed scorer, and on a GPU what it launched."""
    model, clock = random_base(SHAPES[shape], DEVICE, torch.bfloat16, 0), Clock(DEVICE, 2)
    settings, most = settings_of(shape, 1, 1), max(policies)
    with tempfile.TemporaryDirectory() as scratch:
        made = random_material(settings, bench_base(model, shape, scratch), most, Path(scratch))
    for tokens in lengths:
        prefix = made.conversation(tokens, 1000)
        for count in policies:
            system = PackedScorer(made, clock)
            system.run(prefix, range(count))
            ms = sorted(1000 * system.run(prefix, range(count)).seconds for _ in range(5))
            launched = launches(lambda s=system, p=prefix, n=count: s.run(p, range(n)))
            keep(what="packed", tokens=tokens, policies=count, ms=round(ms[2], 1), **launched)


def launches(run: Callable[[], object]) -> dict[str, Any]:
    """Kernels that ``run`` launched, and milliseconds in which the GPU was busy; nothing without one."""
    if DEVICE.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    count = sum("LaunchKernel" in event.name for event in seen.events() or ())
    busy = sum(one.self_device_time_total for one in seen.key_averages()) / 1000
    return {"launches": count, "busy_ms": round(busy, 1)}
