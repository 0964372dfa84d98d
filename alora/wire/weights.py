"""Which weights may answer a request: the guard and the clients name them, the vLLM plugin compares.

A name and an id on a server can come to mean other weights while it runs; a digest cannot.
"""

import hashlib
from collections.abc import Mapping

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ASKED_WEIGHTS = "alora_weights"  # of a request's extra_args (HTTP: vllm_xargs): the digest of what alone may answer it
_PREFIXES = ("adapter_model.", "new_embeddings.")


def makes_adapter(name: str) -> bool:
    """Whether the file ``name`` of an adapter's folder decides what it computes."""
    return name == CONFIG or name.startswith(_PREFIXES)


def weights_digest(files: Mapping[str, str]) -> str:
    """What identifies an adapter, by the sha256 of each file of its folder; the others count for nothing."""
    sha = hashlib.sha256()
    for name in filter(makes_adapter, sorted(files)):
        # Digest of digests: a file that grows into the next one's name cannot look like it.
        sha.update(name.encode() + b"\0" + bytes.fromhex(files[name]))
    return sha.hexdigest()
