"""A multiprocess engine (engine core and worker in processes of their own), asked everything at once.

Run as ``python -m tests.vllm.run_multiprocess OUT.json``: vLLM keeps its environment for life, so this needs a process
that never had another engine. The plugin must come in by its entry point alone: nothing here registers it.
"""

import json
import os
import sys
from pathlib import Path

from tests.vllm import toy_engine

os.environ.update(toy_engine.ENVIRONMENT)
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"

from tests.vllm import toys as store
from tests.vllm.toys import filler, prompt


def distance(answer, wanted) -> float:
    return float((answer.logprobs_V - wanted).abs().max())


def keep_async_scheduling() -> None:
    """vLLM's CPU platform switches async scheduling off as not needed; on a GPU it is the default, so keep it on."""
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, vllm_config):
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def main(out: str) -> None:
    toys, reference = store.toys("qwen3"), store.reference("qwen3")
    keep_async_scheduling()
    engine = toy_engine.ToyEngine(toys.base, async_scheduling=True)
    names = ["linear", "wide", None, "attention", "plain"]
    adapters = [toys[name] if name else None for name in names]
    ids = prompt(70)
    answers = engine.ask([ids] * len(names), adapters, max_tokens=40)
    found = {
        "core_in_this_process": hasattr(engine.llm.llm_engine.engine_core, "engine_core"),
        "async_scheduling": bool(engine.llm.llm_engine.vllm_config.scheduler_config.async_scheduling),
        "distances": [distance(a, reference.logprobs_V(ids, b)) for a, b in zip(answers, adapters, strict=True)],
        "generated": [list(answer.token_ids) for answer in answers],
        "wanted": [reference.greedy(ids, adapter, 40) for adapter in adapters],
        "cached": [answer.cached_tokens for answer in answers],
    }
    try:
        engine.ask_one(filler(50), toys["linear"])
        found["missing"] = "accepted"
    except ValueError as error:
        found["missing"] = str(error)
    found["after_refusal"] = distance(engine.ask_one(ids, toys["linear"]), reference.logprobs_V(ids, toys["linear"]))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
