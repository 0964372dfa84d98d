"""aLoRA on vLLM, by CUDA graphs and prefix caching: is every answer PEFT's, and every shared block the base's?

    python scripts/gpu_acceptance.py --out benchmarks/results/gpu_acceptance.json

Six cells, {eager, piecewise graphs, full graphs} x {cache on, cache off}, each an engine in a process of its own, on a
random Qwen3-shaped base of a few megabytes. Meant for one GPU, where it takes minutes; without a GPU it runs the two
eager cells and marks the others as not available. Nothing is downloaded. Exit code 0 when every cell that ran passed.

A cell passes when, against PEFT's aLoRA over the whole sequence, the logprobs after a prompt and those of every
generated token are within ``bound`` for two aLoRA adapters, a plain LoRA and the base, alone and in one batch; an
adapter hits the base's cache up to the last whole block before its activation (no block where the cache is off); the
KV blocks before the activation are the base's byte for byte, and those of the plain LoRA are not. In float32 the bound
is 1e-4; in bfloat16 twice the distance that the base itself has between vLLM and transformers, at most 0.25.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from alora.config.environment import describe_environment

GRAPHS = {"eager": None, "piecewise": "PIECEWISE", "full": "FULL_AND_PIECEWISE"}
VOCABULARY, INVOCATION, BLOCK = 512, [5, 6, 7], 32
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"r": 8, "target_modules": ATTENTION, "alora_invocation_tokens": INVOCATION},
    "linear": {"r": 16, "target_modules": "all-linear", "alora_invocation_tokens": INVOCATION},
    "plain": {"r": 8, "target_modules": "all-linear"},
}
ACTIVATIONS = (20, 64, 95, 130)
GENERATED = 12
LARGEST_BOUND = 0.25  # a base that is further from transformers is another model
CELL_SECONDS = 240 if torch.cuda.is_available() else 900  # a cell compiles its graphs anew; most take a minute


def prompts() -> list[list[int]]:
    """Prompts whose invocation starts inside, at the start and at the end of a cache block."""
    made = []
    for seed, activation in enumerate(ACTIVATIONS):
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(10, VOCABULARY, (activation + 9,), generator=draw).tolist()
        made.append(ids[:activation] + INVOCATION + ids[activation:])
    return made


def write_models(home: Path, dtype: torch.dtype) -> None:
    """The base and its adapters, random but large enough that an adapter moves every logit."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    shape |= {"num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024, "vocab_size": VOCABULARY}
    config = Qwen3Config(**shape, initializer_range=0.08, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(str(home / "base"))
    for seed, (name, settings) in enumerate(ADAPTERS.items(), start=1):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(home / "base")
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_alpha=16, **settings))
        for key, weight in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(weight, std=0.1)
        model.save_pretrained(str(home / name))


class Reference:
    """PEFT over whole sequences, in the dtype and on the device of the engine."""

    def __init__(self, home: Path, dtype: torch.dtype) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._models: dict[str | None, Any] = {}
        for name in (None, *ADAPTERS):
            model: Any = AutoModelForCausalLM.from_pretrained(home / "base", dtype=dtype)
            if name is not None:
                model = PeftModel.from_pretrained(model, home / name, autocast_adapter_dtype=False)
            self._models[name] = model.to(self._device).eval()

    @torch.no_grad()
    def logprobs_TV(self, name: str | None, ids: list[int]) -> torch.Tensor:
        """Logprobs of the token after each of ``ids``."""
        logits_BTV = self._models[name](input_ids=torch.tensor([ids], device=self._device)).logits
        return logits_BTV[0].float().log_softmax(-1).cpu()


def distances(reference: Reference, name: str | None, ids: list[int], output: Any) -> list[float]:
    """Of an answer's logprobs from PEFT's: over the vocabulary after the prompt, then of each generated token."""
    completion = output.outputs[0]
    wanted_TV = reference.logprobs_TV(name, [*ids, *completion.token_ids])[len(ids) - 1 :]
    first = completion.logprobs[0]
    found = [max(abs(entry.logprob - float(wanted_TV[0, token])) for token, entry in first.items())]
    for step, token in enumerate(completion.token_ids):
        found.append(abs(completion.logprobs[step][token].logprob - float(wanted_TV[step, token])))
    return found


def start_engine(home: Path, graphs: str, cache: bool, dtype: str) -> Any:
    from vllm import LLM

    settings: dict[str, Any] = {"dtype": dtype, "block_size": BLOCK, "max_model_len": 512, "max_num_seqs": 16}
    settings |= {"enforce_eager": graphs == "eager", "enable_prefix_caching": cache, "num_gpu_blocks_override": 512}
    settings["gpu_memory_utilization"] = 0.06  # a few megabytes of model: other work may go on next to it
    settings |= {"enable_lora": True, "max_loras": 3, "max_lora_rank": 16, "max_logprobs": VOCABULARY}
    if GRAPHS[graphs] is not None:
        settings["compilation_config"] = {"cudagraph_mode": GRAPHS[graphs]}
    return LLM(model=str(home / "base"), skip_tokenizer_init=True, seed=0, **settings)


def run_cell(home: Path, graphs: str, cache: bool, dtype: str) -> dict[str, Any]:
    """Everything that one engine is asked, and the outcome."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    from alora.activation import shareable_blocks
    from alora.vllm_plugin import register, status
    from alora.vllm_plugin.cache_reader import CacheReader

    register()
    assert status().active, status().reason
    llm, reference = start_engine(home, graphs, cache, dtype), Reference(home, getattr(torch, dtype))
    requests = {name: LoRARequest(name, n, str(home / name)) for n, name in enumerate(ADAPTERS, start=1)}
    params = SamplingParams(
        temperature=0.0, max_tokens=GENERATED, logprobs=VOCABULARY, ignore_eos=True, detokenize=False
    )

    def ask(rows: list[tuple[str | None, list[int]]]) -> list[Any]:
        loras: Any = [requests.get(name) if name else None for name, _ in rows]
        return llm.generate([{"prompt_token_ids": ids} for _, ids in rows], params, lora_request=loras, use_tqdm=False)

    gaps: dict[str, float] = {}
    hits, effect = [], float("inf")
    for ids, activation in zip(prompts(), ACTIVATIONS, strict=True):
        llm.reset_prefix_cache()
        for name in (None, *ADAPTERS):
            (output,) = ask([(name, ids)])
            key = name or "base"
            gaps[key] = max(gaps.get(key, 0.0), *distances(reference, name, ids, output))
            if name in ("attention", "linear"):
                wanted = shareable_blocks(activation, BLOCK) * BLOCK if cache else 0
                hits.append({"adapter": name, "wanted": wanted, "found": int(output.num_cached_tokens or 0)})
                moved = (reference.logprobs_TV(name, ids)[-1] - reference.logprobs_TV(None, ids)[-1]).abs().max()
                effect = min(effect, float(moved))
    rows = [(name, ids) for ids in prompts() for name in (*ADAPTERS, None)]
    mixed = [max(distances(reference, *row, output)) for row, output in zip(rows, ask(rows), strict=True)]
    bound = 1e-4 if dtype == "float32" else min(2 * gaps["base"], LARGEST_BOUND)
    kv = compare_blocks(CacheReader(llm), prompts()[1], ACTIVATIONS[1] // BLOCK, requests)
    checks = {
        "answers": max(gaps.values()) <= bound and max(mixed) <= bound,
        "the bound can tell an adapter": bound < effect / 4,
        "cache hits": all(hit["found"] == hit["wanted"] for hit in hits),
        "prefix blocks are the base's": not kv["linear"]["before"] and bool(kv["linear"]["after"]),
        "control: plain LoRA's are not": bool(kv["plain"]["before"]),
    }
    return {"gaps": gaps, "mixed_batch": max(mixed), "bound": bound, "effect": effect, "hits": hits, "kv": kv,
            "checks": checks, "passed": all(checks.values())}  # fmt: skip


def compare_blocks(
    reader: Any, ids: list[int], shared: int, requests: dict[str, Any]
) -> dict[str, dict[str, list[int]]]:
    """Blocks that differ from the base's in any byte of any layer, before and after the activation."""
    reader.scrub(3.0)
    base, found = reader.read(ids), {}
    for name in ("linear", "plain"):
        reader.scrub(3.0)
        pairs = zip(base, reader.read(ids, requests[name]), strict=True)
        differing = sorted({int(block) for a, b in pairs for block in (a != b).any(dim=1).nonzero().flatten()})
        found[name] = {
            "before": [block for block in differing if block < shared],
            "after": [block for block in differing if block >= shared],
        }
    return found


def cell_in_process(home: Path, graphs: str, cache: bool, dtype: str) -> dict[str, Any]:
    """One cell in a process of its own, with what it printed last if it failed."""
    told = {"graphs": graphs, "cache": cache}
    if graphs != "eager" and not torch.cuda.is_available():
        return {**told, "available": False, "why": "CUDA graphs need a GPU"}
    start, out = time.monotonic(), home / f"{graphs}-{cache}.json"
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if not torch.cuda.is_available():
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, __file__, "--cell", graphs, str(int(cache)), "--dtype", dtype, "--home", str(home)]
    try:
        done = subprocess.run(
            [*command, "--out", str(out)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=CELL_SECONDS,
            check=False,
        )
        ended = f"exit code {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
    except subprocess.TimeoutExpired:
        ended = f"no answer within {CELL_SECONDS} s"
    seconds = round(time.monotonic() - start)
    found = json.loads(out.read_text()) if out.is_file() else {"passed": False, "error": ended}
    return {**told, "available": True, "seconds": seconds, **found}


def run_all(
    dtype: str, keep: Callable[[dict[str, Any]], None], wanted: Sequence[tuple[str, bool]]
) -> dict[str, Any]:  # fmt: skip
    """Every wanted cell; what there is is kept after each, so that a machine that is taken away leaves its results."""
    with tempfile.TemporaryDirectory(prefix="alora-acceptance-") as scratch:
        home = Path(scratch)
        write_models(home, getattr(torch, dtype))
        cells = []
        for graphs, cache in wanted:
            cells.append(cell_in_process(home, graphs, cache, dtype))
            print(json.dumps({key: cells[-1].get(key) for key in ("graphs", "cache", "passed", "seconds")}), flush=True)
            keep(_told(cells, dtype, len(cells) == len(wanted)))
    return _told(cells, dtype, True)


def _told(cells: list[dict[str, Any]], dtype: str, complete: bool) -> dict[str, Any]:
    from alora.vllm_plugin import compat

    return {
        "what": "aLoRA on vLLM against PEFT, by CUDA graphs and prefix caching; see the script's head",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "vllm": compat.vllm_version(),
        "torch": torch.__version__,
        "environment": describe_environment(),
        "dtype": dtype,
        "complete": complete,
        "cells": cells,
        "passed": all(cell["passed"] for cell in cells if cell["available"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result is written")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--caches", nargs="+", choices=("on", "off"), default=["on", "off"])
    parser.add_argument("--cell", nargs=2, metavar=("GRAPHS", "CACHE"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()

    def keep(told: dict[str, Any]) -> None:
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(told, indent=1) + "\n")

    if given.cell:
        told = run_cell(given.home, given.cell[0], given.cell[1] == "1", given.dtype)
        keep(told)
    else:
        told = run_all(
            given.dtype, keep, [(graphs, cache == "on") for graphs in given.graphs for cache in given.caches]
        )
    if not given.out:
        print(json.dumps(told, indent=1))
    return 0 if told["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
