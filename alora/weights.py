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
_LONGEST_HEADER = 32 * 2**20  # bytes of a safetensors header, of some 200,000 tensors: Python holds many times that
_SMALL, _BLOCK = 16 * 2**20, 512  # bytes of a file whose holes cost nobody anything; of a block, for stat


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


def require_no_holes(file: Path, refusal: type[AloraError]) -> None:
    """``refusal`` for a large file that is mostly holes: its sender pays nothing, its reader for all of it."""
    state = file.stat()
    if state.st_size <= _SMALL or state.st_blocks * _BLOCK >= state.st_size / 8:
        return
    with file.open("rb") as stream:  # file systems that do not count blocks, or not yet, know of no hole before the end
        if os.lseek(stream.fileno(), 0, os.SEEK_HOLE) < state.st_size:
            raise refusal(f"{file} is mostly holes: {state.st_size} bytes, of which the disk holds few; get it again")


def require_whole(file: Path, refusal: type[AloraError]) -> None:
    """The same, and for one without bytes, or weights whose header does not fit: it is read, and never mapped, since a
    mapped file that is cut short meanwhile ends the process."""
    require_no_holes(file, refusal)
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size == 0:  # a link into /proc: it has no size, and no end either
            raise refusal(f"{file} is damaged (no bytes); copy or export the adapter again")
        if file.name == WEIGHTS:
            _require_header(file, stream, size, refusal)


def _require_header(file: Path, stream: BinaryIO, size: int, refusal: type[AloraError]) -> None:
    length = int.from_bytes(stream.read(8), "little")
    if _LONGEST_HEADER < length < size:
        raise refusal(f"{file} has a header of {length} bytes, and {_LONGEST_HEADER} are read; export it again")
    try:
        if length >= size:
            raise ValueError(f"a header of {length} bytes")
        tensors = json.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"its header does not say that it has {size} bytes")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise refusal(f"{file} is damaged ({error}); copy or export the adapter again") from error
