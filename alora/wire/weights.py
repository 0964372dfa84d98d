"""Which weights may answer a request: the guard and the clients name them, the vLLM plugin compares.

A name and an id on a server can come to mean other weights while it runs; a digest cannot.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from alora.errors import AloraError

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


def require_whole(file: Path, refusal: type[AloraError]) -> None:
    """``refusal`` for weights whose header does not fit the file: a mapped file that is cut short ends the process."""
    if file.name == WEIGHTS:
        with file.open("rb") as stream:
            _require_header(file, stream, os.fstat(stream.fileno()).st_size, refusal)


def _require_header(file: Path, stream: BinaryIO, size: int, refusal: type[AloraError]) -> None:
    length = int.from_bytes(stream.read(8), "little")
    try:
        if length >= size:
            raise ValueError(f"a header of {length} bytes")
        tensors = json.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"its header does not say that it has {size} bytes")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise refusal(f"{file} is damaged ({error}); copy or export the adapter again") from error
