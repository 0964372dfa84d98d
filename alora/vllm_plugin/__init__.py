"""aLoRA on stock vLLM: one entry point, no fork.

vLLM calls :func:`register` in every process it starts (group ``vllm.general_plugins``). Then, in the order of a
request's life:

1. ``install`` checks the vLLM version and every symbol that ``compat`` names, puts all patches in together, runs
   ``self_test``, and removes all of them if anything fails. :func:`status` returns the outcome.
2. ``engine_check`` asks every worker of a starting engine whether its model runner is masked.
3. ``activation_source`` finds a request's activation index once, in the engine core, and lets a per-request copy of
   the LoRA request carry it to the workers, with the weights of its ``adapter_record``: a private copy of the files.
   ``lora_ids`` keeps which record an id means.
   ``refusals`` carries the core's word on a prompt that cannot be answered back to its user.
4. ``prefix_hash`` keys the cache blocks that end at or before the activation as the base's own.
5. ``token_mapping`` gives the tokens before the activation to no adapter, in both model runners; ``cpu_lora_ops``
   makes vLLM's CPU kernels honour that.
6. ``cache_reader`` reads KV blocks out of vLLM's cache, to certify that they equal the base's.

Importing this package imports neither vLLM nor torch.
"""

from alora.vllm_plugin.install import register
from alora.vllm_plugin.state import Status, status

__all__ = ["Status", "register", "status"]
