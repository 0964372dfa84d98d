"""What a starting engine must show before it may share base blocks: workers whose model runner is masked.

Base-aligned hashing without the mask would publish adapted KV as the base's. So an engine core serves aLoRA only after
each of its workers has said that the class of its model runner uses the masked functions. Anything else, a worker in
which the plugin is not active or a runner of another make, leaves the engine serving the base and plain LoRA alone.
"""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alora.vllm_plugin import compat
from alora.vllm_plugin.activation_source import engine_records, note_engine
from alora.vllm_plugin.state import status

_logger = logging.getLogger("vllm.alora")


def masked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a patched function as one that masks."""
    function.alora_masks = True  # type: ignore[attr-defined]
    return function


def _masks(holder: Any, name: str) -> bool:
    return getattr(getattr(holder, name, None), "alora_masks", False)


def worker_refusal(worker: Any, copies: str) -> str | None:
    """Why this worker cannot run aLoRA, or None. Called inside the worker's process."""
    found = status()
    if not found.active:
        return f"the alora plugin is not active in a worker: {found.reason}"
    if not Path(copies).is_dir():
        return f"a worker on another machine does not see {copies}; let TMPDIR name a folder that all machines share"
    runner = compat.model_runner(worker)
    kind = type(runner)
    lora_state = getattr(runner, "lora_state", None)  # of the V2 runner alone
    if lora_state is None:
        if _masks(kind, compat.V1_ACTIVE_LORAS.name):
            return None
    elif _masks(type(lora_state), compat.V2_LORA_INPUTS.name) and _masks(kind, compat.V2_PREPARE_INPUTS.name):
        return None
    return f"the model runner {kind.__module__}.{kind.__qualname__} does not use vLLM's LoRA token mapping"


def check_engine(engine: Any) -> str | None:
    """Why this engine core cannot run aLoRA, or None."""
    refusal = compat.engine_refusal(engine.vllm_config)
    if refusal is not None:
        return refusal
    try:
        answers = engine.model_executor.collective_rpc(worker_refusal, args=(engine_records(engine).folder,))
    except Exception as error:  # a worker without alora, or an executor that cannot ask: both mean no
        return f"a worker could not be asked about its model runner ({type(error).__name__}: {error})"
    return next((answer for answer in answers if answer is not None), None)


def engine_start_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore._initialize_kv_caches``, the first step of a starting engine core with workers to ask."""
    # Not __init__: in a spawned engine core that is already running when it loads the plugin.

    @functools.wraps(original)
    def _initialize_kv_caches(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if self.vllm_config.lora_config is not None:
            refusal = check_engine(self)
            note_engine(self, refusal)
            if refusal is not None:
                _logger.error("This engine refuses aLoRA adapters: %s", refusal)
        return found

    return _initialize_kv_caches
