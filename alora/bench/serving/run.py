"""``alora bench serving``: the whole story, from a seed to plain data for the report."""

from __future__ import annotations

import importlib.util
import resource
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from alora.bench.serving import guards
from alora.bench.serving.arms import NULL, Arm, PackedArm, PeftLoraArm, VllmArm
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.context import Bench, TimeIsUp
from alora.bench.serving.conversation import run_conversation
from alora.bench.serving.engine import BenchEngine, EngineOptions
from alora.bench.serving.evaluate import evaluate, judge_open_loop
from alora.bench.serving.floor import Floors, kv_bytes, measure_machine
from alora.bench.serving.grid import run_grid, run_warm
from alora.bench.serving.material import Material, adapted, bundle_material, random_material
from alora.bench.serving.open_loop import run_open_loop
from alora.bench.serving.pipeline import run_pipeline
from alora.bench.serving.plan import open_loop_adapters, planned_tokens
from alora.bench.serving.reference import References, ask_references, sampled
from alora.config.schema import BaseSettings, BenchSettings
from alora.errors import ConfigError

NEEDS_ENGINE = ("warm", "open_loop", "pipeline")
_FORM = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"


def run_serving(
    settings: BenchSettings, base: BaseSettings, device: torch.device, dtype: torch.dtype, progress: bool = True
) -> dict[str, Any]:
    """Measure everything that ``settings`` ask for.

    Raises:
        ConfigError: more adapters are asked for than the battery has, no workload or no arm of ours can run here,
            ``bench.serving.limit_s`` was over before anything was finished, or vLLM would take another device.
        MissingDependency: ``bench.serving.engine=vllm`` without vLLM.
    """
    settings = _for_this_place(settings)
    if settings.serving.engine == "vllm" and device.type == "cpu" and torch.cuda.is_available():
        raise ConfigError("base.device=cpu, but vLLM would take the GPU that is here; hide it: CUDA_VISIBLE_DEVICES=''")
    began, spent = time.perf_counter(), time.process_time()
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    clock = BenchClock(cpu=device.type == "cpu" and settings.threads == 1)
    try:
        with tempfile.TemporaryDirectory(prefix="alora-bench-") as scratch:
            material = _material(settings, base, device, dtype, Path(scratch))
            machine = measure_machine(material, clock)
            bench = _bench(settings, material, dtype, clock, progress)
            limit = settings.serving.limit_s
            bench.deadline = None if limit is None else began + limit
            more, stopped = _run_workloads(bench)
            bench.bar.set_description("references")
            try:
                bench.references = ask_references(material, sampled(bench))
            except (KeyboardInterrupt, RuntimeError) as error:  # then no verdict was compared, and every ratio says so
                stopped = "; then ".join(filter(None, (stopped, _in_words(error))))
            found = evaluate(bench, Floors(material, machine))
            judge_open_loop(bench, more)
            bench.bar.close()
    finally:
        torch.set_num_threads(threads)
    return {
        "settings": asdict(settings),
        "base": {"name": material.name, **asdict(material.shape), "parameters": material.shape.parameters},
        "adapter": asdict(material.adapters[0].spec) | {"count": len(material.adapters)},
        "prompt": {"suffix": len(material.suffixes[0]), "policy_text": len(material.policy_texts[0])},
        "engine": _engine_facts(bench),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "clock": clock.name,
        "tolerance": bench.tolerance,
        "machine": asdict(machine) | {"flops": machine.flops},
        "memory": _memory(device, material),
        "complete": stopped is None,
        "stopped": stopped,
        **found,
        "open_loop": more,
        "spent": {"wall_seconds": round(time.perf_counter() - began, 1),
                  "cpu_seconds": round(time.process_time() - spent, 1)},
    }  # fmt: skip


def _for_this_place(settings: BenchSettings) -> BenchSettings:
    """The same settings with the engine decided, and without what it cannot run."""
    serving = settings.serving
    engine = serving.engine
    if engine == "auto":
        engine = "vllm" if importlib.util.find_spec("vllm") is not None else "scorer"
    workloads, arms = list(serving.workloads), list(serving.arms)
    if engine == "scorer":
        workloads = [name for name in workloads if name not in NEEDS_ENGINE]
        arms = [name for name in arms if name in ("lora", "packed")]
    if not {"alora", "packed"} & set(arms):
        raise ConfigError(
            f"bench.serving.arms={list(serving.arms)} leaves {arms or 'nothing'} on bench.serving.engine={engine}, and "
            "nothing of ours to compare with; add packed, or alora with vLLM"
        )
    if "open_loop" in workloads and not set(serving.open_loop_arms) & set(arms):
        raise ConfigError(
            f"bench.serving.open_loop_arms={list(serving.open_loop_arms)} holds none of bench.serving.arms={arms}, so "
            "nobody would run the open loop; add one to arms, or leave open_loop out of the workloads"
        )
    if not workloads:
        raise ConfigError(f"bench.serving.workloads={list(serving.workloads)} all need vLLM; install it or add grid")
    return replace(settings, serving=replace(serving, engine=engine, workloads=workloads, arms=arms))


def _material(
    settings: BenchSettings, base: BaseSettings, device: torch.device, dtype: torch.dtype, scratch: Path
) -> Material:
    if settings.battery is None:
        return random_material(settings, base, device, dtype, _adapters_needed(settings), scratch)
    material = bundle_material(settings, base, scratch)
    needed, held = _adapters_needed(settings), len(material.adapters)
    if needed > held:
        raise ConfigError(
            f"bench.battery={settings.battery} holds {held} bundles, and the workloads ask for {needed}; lower "
            "bench.serving.adapters, turn_adapters and populations, or leave workloads out"
        )
    return material


def _adapters_needed(settings: BenchSettings) -> int:
    serving = settings.serving
    counts = {"grid": max(serving.adapters), "warm": max(serving.adapters), "conversation": serving.turn_adapters}
    counts |= {"open_loop": open_loop_adapters(settings), "pipeline": 1}
    return max(counts[name] for name in serving.workloads)


def _compared(settings: BenchSettings) -> int:
    """Adapters that are timed beside each other; a larger population is meant to outgrow the slots."""
    serving = settings.serving
    counts = [1, *(serving.adapters if {"grid", "warm"} & set(serving.workloads) else ())]
    counts += [serving.turn_adapters] if "conversation" in serving.workloads else []
    counts += [min(serving.populations)] if "open_loop" in serving.workloads else []
    return max(counts)


def _bench(settings: BenchSettings, material: Material, dtype: torch.dtype, clock: BenchClock, progress: bool) -> Bench:
    serving = settings.serving
    bar = tqdm(total=planned_tokens(settings), disable=not progress, bar_format=_FORM, desc="engine starts")
    engine = None
    if serving.engine == "vllm":
        engine = BenchEngine(_engine_options(settings, material, dtype), material.folders, clock)
    arms = {name: _arm(name, material, engine, clock) for name in serving.arms}
    ours = "alora" if "alora" in arms else "packed"
    arms[NULL] = _arm(ours, material, engine, clock, NULL) if engine is not None else arms[ours]
    nothing = References({}, {}, {}, {})  # asked at the end, about what was really run
    return Bench(settings, material, arms, engine, clock, nothing, guards.tolerance_of(dtype), bar)


def _arm(name: str, material: Material, engine: BenchEngine | None, clock: BenchClock, called: str = "") -> Arm:
    if name == "packed":
        return PackedArm(material, clock)
    if engine is None:
        return PeftLoraArm(material, clock)
    return VllmArm(called or name, None if name == "base" else name, engine, material)


def _engine_options(settings: BenchSettings, material: Material, dtype: torch.dtype) -> EngineOptions:
    serving = settings.serving
    tail = max(len(ids) for ids in (*material.suffixes, *material.policy_texts))
    lengths = [*serving.lengths, *serving.warm_lengths, serving.turns * serving.turn_tokens, serving.open_loop_length]
    longest = max(lengths) + tail + 2 * serving.pipeline_tokens + 8
    longest = max(longest, serving.pipeline_length + tail + 2 * serving.pipeline_tokens + 8)
    return EngineOptions(
        base=material.base,
        dtype=str(dtype).removeprefix("torch."),
        rank=max(adapter.spec.rank for adapter in material.adapters),
        slots=2 * _compared(settings),
        adapters=2 * len(material.adapters),
        longest=longest,
        tokens=max(serving.step_tokens, 64),
        requests=serving.step_requests,
        kv_gib=serving.kv_gib,
        gpu_share=serving.gpu_share,
        graphs=serving.graphs,
        seed=settings.seed,
        tokenizer=material.tokenizer,
        targets=tuple(sorted({part for adapter in material.adapters for part in adapted(adapter)})),
    )


def _run_workloads(bench: Bench) -> tuple[list[dict[str, Any]], str | None]:
    """Run them in the order given: the open loop's entries, and what stopped the run before its end, if anything did.

    Whatever stops it, what was finished is kept.
    """
    more: list[dict[str, Any]] = []
    runs = {"grid": run_grid, "warm": run_warm, "conversation": run_conversation, "pipeline": run_pipeline}
    stopped = None
    try:
        bench.in_time()
        for name in bench.settings.serving.workloads:
            if name == "open_loop":
                run_open_loop(bench, more)
            else:
                runs[name](bench)
    except (KeyboardInterrupt, Exception) as error:
        bench.keep_whole_rounds()
        if not bench.cells and not more:
            if isinstance(error, TimeIsUp):
                raise ConfigError(f"{error} before anything was finished; raise it, or ask for less") from error
            raise
        stopped = _in_words(error)
    packed = bench.arms.get("packed")
    if isinstance(packed, PackedArm):
        packed.close()
    return more, stopped


def _in_words(error: BaseException) -> str:
    """Why a run stopped."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    reason = str(error).strip().split("\n")[0]
    return reason if isinstance(error, TimeIsUp) else f"{type(error).__name__}: {reason}"


def _engine_facts(bench: Bench) -> dict[str, Any]:
    if bench.engine is None:
        return {"name": "scorer"}
    facts = asdict(bench.engine.options) | {"name": "vllm", "block": bench.engine.block}
    return {name: value for name, value in facts.items() if name not in ("base", "seed")}


def _memory(device: torch.device, material: Material) -> dict[str, float]:
    found = {"kv_bytes_per_token": float(kv_bytes(material))}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return found | {"gpu_used_mib": (total - free) / 2**20, "gpu_total_mib": total / 2**20}
    return found | {"resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
