"""vLLM's names that its engine takes; imported once :func:`~alora.client.engine.prepare_environment` has run.

``LLM`` is asked of ``vllm``, which imports it only then: a server's guard does without its 0.9 s and 345 modules.
"""

import vllm
from vllm import SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.lora.request import LoRARequest

__all__ = ["LoRARequest", "SamplingParams", "cleanup_dist_env_and_memory", "vllm"]
