"""A request that ends the engine of vLLM's CPU build, refused where others depend on it: in a guard's server."""

from typing import Any

from alora.vllm_plugin import compat
from alora.vllm_plugin.state import STATE


def refuse_on_cpu() -> None:
    """Refuse seeded sampling in this process from here on, where vLLM computes on a CPU."""
    STATE.seeds_end_engine = compat.on_cpu()


def refusal(params: Any) -> str | None:
    """Why a request with these sampling parameters (None: it pools) is refused, or None.

    A prompt may be computed in chunks, next to others too, and vLLM winds the generator back after each, which one on a
    CPU cannot: "CPU Generator does not use offset" (``GPUModelRunner._bookkeeping_sync``, 0.32).
    """
    if not STATE.seeds_end_engine or params is None or params.seed is None or params.temperature <= 0:
        return None
    return "seed: it would end the engine of vLLM's CPU build; leave it out, or add temperature=0"
