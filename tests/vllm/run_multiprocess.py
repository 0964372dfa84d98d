"""A multiprocess engine (engine core and worker in processes of their own), asked everything at once.

Run as ``python -m tests.vllm.run_multiprocess OUT.json``: vLLM keeps its environment for life, so this needs a process
that never had another engine. The plugin must come in by its entry point alone: nothing here registers it.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.vllm import toy_engine

os.environ.update(toy_engine.ENVIRONMENT)
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"

from tests.vllm import toys as store
from tests.vllm.toy_engine import lora_request
from tests.vllm.toy_models import ToyAdapter
from tests.vllm.toys import INVOCATION, filler, prompt


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


def refused_in_the_core(engine, toys) -> list[str | None]:
    """Why three requests ended that no front end can refuse: an adapter of other widths, twice, and another digest."""
    from vllm import SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        odd = shutil.copytree(toys["linear"].path, Path(folder, "odd"))
        weights = load_file(odd / "adapter_model.safetensors")
        query = next(name for name in weights if "layers.0.self_attn.q_proj.lora_A" in name)
        save_file(weights | {query: torch.ones(8, 32)}, odd / "adapter_model.safetensors")
        adapter = lora_request(ToyAdapter("odd", 97, str(odd), INVOCATION))
        asked = [(adapter, None), (adapter, None), (lora_request(toys["linear"]), {"alora_weights": "0" * 64})]
        outputs = [
            engine.llm.generate(
                {"prompt_token_ids": prompt(70)},
                SamplingParams(max_tokens=1, detokenize=False, extra_args=extra),
                lora_request=one,
                use_tqdm=False,
            )
            for one, extra in asked
        ]
    return [output.outputs[0].finish_reason for (output,) in outputs]


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
    found["odd"] = refused_in_the_core(engine, toys)
    found["after_refusal"] = distance(engine.ask_one(ids, toys["linear"]), reference.logprobs_V(ids, toys["linear"]))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
