"""What a starting engine must show before it may share base blocks: workers whose model runner is masked.

Base-aligned hashing without the mask would publish adapted KV as the base's. So an engine core serves aLoRA only after
each of its workers has said that the class of its model runner uses the masked functions. Anything else, a worker in
which the plugin is not active or a runner of another make, leaves the engine serving the base and plain LoRA alone.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

from alora.vllm_plugin import compat

_logger = logging.getLogger("vllm.alora")


def masked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a patched function as one that masks."""
    function.alora_masks = True  # type: ignore[attr-defined]
    return function


def _masks(holder: Any, name: str) -> bool:
    return getattr(getattr(holder, name, None), "alora_masks", False)


def worker_refusal(worker: Any) -> str | None:
    """Why this worker cannot run aLoRA, or None. Called inside the worker's process."""
    from alora.vllm_plugin.install import status

    found = status()
    if not found.active:
        return f"the alora plugin is not active in a worker: {found.reason}"
    runner = compat.model_runner(worker)
    kind = type(runner)
    lora_state = getattr(runner, "lora_state", None)
    if lora_state is None:
        if _masks(kind, compat.V1_ACTIVE_LORAS.name):
            return None
    elif _masks(type(lora_state), compat.V2_LORA_INPUTS.name) and _masks(kind, compat.V2_PREPARE_INPUTS.name):
        return None
    return f"the model runner {kind.__module__}.{kind.__qualname__} does not use vLLM's LoRA token mapping"


def refusal_of(engine: Any) -> str | None:
    """Why this engine core cannot run aLoRA, or None."""
    refusal = compat.engine_refusal(engine.vllm_config)
    if refusal is not None:
        return refusal
    try:
        answers = engine.model_executor.collective_rpc(worker_refusal)
    except Exception as error:  # a worker without alora, or an executor that cannot ask: both mean no
        return f"a worker could not be asked about its model runner ({type(error).__name__}: {error})"
    return next((answer for answer in answers if answer is not None), None)


def engine_init_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.__init__`` that ends with the check."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.vllm_config.lora_config is None:
            return
        self._alora_refusal = refusal_of(self)
        if self._alora_refusal is not None:
            _logger.error("This engine refuses aLoRA adapters: %s", self._alora_refusal)

    return __init__
