"""The files that a base's weights are read from: the same ones by transformers, by vLLM and for the fingerprint.

transformers reads ``model.safetensors``, or without it what ``model.safetensors.index.json`` names, wherever that is.
vLLM reads every ``*.safetensors`` of the folder, or of those what the index names. Where the two could differ, the
weights that answer need not be those that the fingerprint is of, so the folder is refused.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from alora.base import REMEDY
from alora.errors import BaseError
from alora.reading import read_json
from alora.weights import CONFIG

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> dict[Path, set[str]]:
    """The files with the weights of the base in ``folder``, in order, with the tensors that the index says are in each;
    none where it has no ``*.safetensors``."""
    if os.path.lexists(folder / CONFIG):  # transformers follows a dangling link, too
        raise BaseError(f"{folder / CONFIG}: transformers would load an adapter with the base; move it elsewhere")
    present = {path.name for path in folder.glob("*.safetensors") if not path.name.startswith(".")}
    index = folder / INDEX
    if not index.exists():
        if not present:
            return {}
        named, whence = {WHOLE: set[str]()}, "without an index"
    else:
        named, whence = indexed_files(index), f"by {INDEX}"
        if WHOLE in present and set(named) != {WHOLE}:
            raise BaseError(f"{folder}: transformers reads {WHOLE}, and vLLM what {INDEX} names; remove one of the two")
    if missing := sorted(set(named) - present):
        raise BaseError(f"{folder}: the weights are in {missing[0][:99]!r} {whence}, no file of this folder; {REMEDY}")
    if others := sorted(present - set(named)):
        raise BaseError(
            f"{folder / others[0]}: the weights are in {sorted(named)[0]!r} {whence}, and some loaders would read this "
            "file, too; move it elsewhere"
        )
    files = {folder / name: named[name] for name in sorted(named)}
    for file in files:
        _require_readable(file)
    return files


def indexed_files(index: Path) -> dict[str, set[str]]:
    """The tensors of each file that ``index`` names; BaseError when it is not an index."""
    stored = read_json(index, BaseError, REMEDY)
    places = stored.get("weight_map") if isinstance(stored, dict) else None
    if not isinstance(places, Mapping) or not places or not all(isinstance(name, str) for name in places.values()):
        raise BaseError(f"{index} does not say which tensor is in which file (weight_map); {REMEDY}")
    files: dict[str, set[str]] = {}
    for tensor, name in places.items():
        files.setdefault(name, set()).add(tensor)
    return files


def _require_readable(file: Path) -> None:
    """safetensors calls every reason "No such file"."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise BaseError(f"{file} cannot be read: {error.strerror}; mend that, or take another base") from error
