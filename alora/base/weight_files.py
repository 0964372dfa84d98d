"""The files that a base's weights are read from: the same ones by transformers, by vLLM and for the fingerprint.

transformers reads ``model.safetensors``, or without it what ``model.safetensors.index.json`` names, wherever that is.
vLLM reads every ``*.safetensors`` of the folder, or of those what the index names. Where the two could differ, the
weights that answer need not be those that the fingerprint is of, so the folder is refused.
"""

import os
from pathlib import Path

from alora.base import REMEDY
from alora.errors import BaseError
from alora.received import DAMAGED, decode, refused
from alora.text import read_json
from alora.wire.weights import CONFIG

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of the base in ``folder``, in order; none where it has no ``*.safetensors``."""
    if os.path.lexists(folder / CONFIG):  # transformers follows a dangling link, too
        raise BaseError(f"{folder / CONFIG}: transformers would load an adapter with the base; move it elsewhere")
    present = {path.name for path in folder.glob("*.safetensors") if not path.name.startswith(".")}
    index = folder / INDEX
    if not index.exists():
        if not present:
            return []
        named, whence = {WHOLE}, "without an index"
    else:
        named, whence = indexed_files(index), f"by {INDEX}"
        if WHOLE in present and named != {WHOLE}:
            raise BaseError(f"{folder}: transformers reads {WHOLE}, and vLLM what {INDEX} names; remove one of the two")
    if missing := sorted(named - present):
        raise BaseError(f"{folder}: the weights are in {missing[0][:99]!r} {whence}, no file of this folder; {REMEDY}")
    if others := sorted(present - named):
        raise BaseError(
            f"{folder / others[0]}: the weights are in {sorted(named)[0]!r} {whence}, and some loaders would read this "
            "file, too; move it elsewhere"
        )
    return [folder / name for name in sorted(named)]


def indexed_files(index: Path) -> set[str]:
    """The files that ``index`` names; BaseError when it is not an index."""
    try:
        places = decode(dict[str, str], read_json(index, BaseError, REMEDY).get("weight_map"), "weight_map")
        if not places:
            raise TypeError("weight_map is empty")
    except TypeError as error:
        why = f"{index} does not say which tensor is in which file ({error}); {REMEDY}"
        raise refused(BaseError, DAMAGED, why) from error
    return set(places.values())
