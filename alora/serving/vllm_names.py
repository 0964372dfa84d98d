"""vLLM's names that its engine takes; imported once :func:`~alora.serving.engine.prepare_environment` has run."""

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.lora.request import LoRARequest

__all__ = ["LLM", "LoRARequest", "SamplingParams", "cleanup_dist_env_and_memory"]
