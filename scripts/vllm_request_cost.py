"""Python time per request in vLLM's front end and engine core, stock against the plugin, for many adapters on one
conversation.

    python scripts/vllm_request_cost.py --out benchmarks/results/vllm_request_cost.json

No model runs: the time is spent where a request becomes a schedulable one, which does not depend on the model. Reported
per request, in milliseconds, medians over the repeats: the engine core's part (activation, block hashes), which is what
the plugin can remove, and what the plugin adds to the front end of another process, which finds the activation too.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

BLOCK = 16
SUFFIX = 24
INVOCATION = [7, 8, 9]


def write_adapter(folder: Path) -> str:
    """The files that the plugin reads of an adapter; no worker loads the weights, which differ for each."""
    from safetensors.numpy import save_file

    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    config["alora_invocation_tokens"] = INVOCATION
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shapes = {"A": (8, 16), "B": (16, 8)}
    tensors = {half: np.random.default_rng().random(shape, np.float32) for half, shape in shapes.items()}
    save_file(
        {f"base_model.model.q_proj.lora_{half}.weight": tensor for half, tensor in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    return str(folder)


def engine_stub(hasher: Any) -> Any:
    """What ``EngineCore.preprocess_add_request`` reads of its engine."""
    return SimpleNamespace(mm_receiver_cache=None, request_block_hasher=hasher, structured_output_manager=None)


def core_requests(prefix: list[int], paths: list[str], alora: bool) -> Iterator[Any]:
    """One engine-core request per adapter, made when asked for, with token ids of its own: as it comes off the wire."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine import EngineCoreRequest

    fields = EngineCoreRequest.__struct_fields__
    optional = dict(
        zip(
            fields[len(fields) - len(EngineCoreRequest.__struct_defaults__) :],
            EngineCoreRequest.__struct_defaults__,
            strict=True,
        )
    )
    for number, path in enumerate(paths, start=1):
        values = {**dict.fromkeys(fields), **optional}
        ids = [*(token + 0 for token in prefix), *INVOCATION, *(1000 + number + at for at in range(SUFFIX))]
        values.update(
            request_id=str(number),
            prompt_token_ids=ids,
            sampling_params=SamplingParams(max_tokens=1),
            arrival_time=0.0,
            lora_request=LoRARequest(f"a{number}", number, path) if alora else None,
            client_index=0,
            current_wave=0,
            priority=0,
            resumable=False,
        )
        yield EngineCoreRequest(**{name: value for name, value in values.items() if name in fields})


def timed(preprocess: Callable[..., Any], engine: Any, requests: Iterator[Any]) -> tuple[float, list[list[bytes]]]:
    """Milliseconds per request, and the hashes that came out."""
    spent, hashes = [], []
    for request in requests:
        start = time.perf_counter()
        made, _ = preprocess(engine, request)
        spent.append(time.perf_counter() - start)
        hashes.append(list(made.block_hashes))
    return 1e3 * sum(spent) / len(spent), hashes


def timed_front_end(requests: list[Any]) -> float:
    """Milliseconds per request that the plugin adds where the engine core is in another process."""
    from alora.vllm_plugin.activation_source import process_inputs_patch

    process_inputs, front_end = process_inputs_patch(lambda self, request: request), SimpleNamespace(vllm_config=None)
    start = time.perf_counter()
    for request in requests:
        process_inputs(front_end, request)
    return 1e3 * (time.perf_counter() - start) / len(requests)


def measure(prefix_tokens: int, adapters: int, repeats: int, paths: list[str]) -> dict[str, Any]:
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore

    from alora.vllm_plugin import install, register, status
    from alora.vllm_plugin.activation_source import note_engine

    class Engine(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    prefix = [(31 * at) % 900 + 10 for at in range(prefix_tokens)]
    function = get_hash_fn_by_name("sha256")
    kv_cache_utils.init_none_hash(function)
    found: dict[str, list[float]] = {"stock": [], "plugin_first": [], "plugin": [], "plugin_front_end": []}
    for _ in range(repeats):
        install.unregister()
        stock = Engine(**vars(engine_stub(kv_cache_utils.get_request_block_hasher(BLOCK, function))))
        per_request, _ = timed(EngineCore.preprocess_add_request, stock, core_requests(prefix, paths, alora=True))
        found["stock"].append(per_request)
        (_, base) = timed(EngineCore.preprocess_add_request, stock, core_requests(prefix, paths[:1], alora=False))
        register()
        assert status().active, status().reason
        patched = Engine(
            **vars(engine_stub(kv_cache_utils.get_request_block_hasher(BLOCK, function))),
            vllm_config=SimpleNamespace(lora_config=None),
        )
        note_engine(patched, None)
        first, _ = timed(EngineCore.preprocess_add_request, patched, core_requests(prefix, paths, alora=True))
        again, hashes = timed(EngineCore.preprocess_add_request, patched, core_requests(prefix, paths, alora=True))
        shared = prefix_tokens // BLOCK
        assert all(one[:shared] == base[0][:shared] for one in hashes), "shared hashes are not stock's"
        found["plugin_first"].append(first)
        found["plugin"].append(again)
        found["plugin_front_end"].append(timed_front_end(list(core_requests(prefix, paths, alora=True))))
    medians = {name: round(statistics.median(values), 4) for name, values in found.items()}
    return {
        "prefix_tokens": prefix_tokens,
        "adapters": adapters,
        "ms_per_request": medians,
        "ratio_first_round": round(medians["stock"] / medians["plugin_first"], 1),
        "ratio_later_rounds": round(medians["stock"] / medians["plugin"], 1),
        "base_hashes_equal_stock": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prefix-tokens", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        paths = [write_adapter(Path(scratch, f"a{number}")) for number in range(given.adapters)]
        rows = [measure(tokens, given.adapters, given.repeats, paths) for tokens in given.prefix_tokens]
    from alora.config.environment import describe_environment
    from alora.vllm_plugin import compat

    told = {
        "what": "Python milliseconds per request in EngineCore.preprocess_add_request and in the front end, medians",
        "vllm": compat.vllm_version(),
        "environment": describe_environment(),
        "block_size": BLOCK,
        "repeats": given.repeats,
        "rows": rows,
    }
    text = json.dumps(told, indent=1)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
