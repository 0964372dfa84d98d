"""Where a base lies: the folder or hub id that any loader takes, fetched or converted first where needed."""

import re
from pathlib import Path

from alora.base import REMEDY, smollm2
from alora.base.gguf import converted
from alora.config.paths import is_gguf
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from alora.reading import read_json

_MOST_LABELS = 10_000


def base_location(settings: BaseSettings, progress: bool = True) -> str:
    """The folder or hub id that any loader takes for ``settings``; "smollm2" is fetched and a GGUF file converted when
    the cache does not hold them yet.

    Raises:
        BaseError: no base is chosen, its folder or file does not exist, or it cannot be fetched or converted.
    """
    source = settings.source
    if source is None:
        raise BaseError("no base chosen; add base=smollm2, base=qwen3_4b, ... or base.source=ID_FOLDER_OR_GGUF")
    if source == smollm2.NAME:
        return str(smollm2.ensure_smollm2(progress))
    if is_gguf(source):
        return str(converted(Path(source), progress))
    if Path(source).is_absolute() and not Path(source).is_dir():
        raise BaseError(f"base folder {source} does not exist; check base.source")
    require_named_type(Path(source))
    return source


def require_named_type(folder: Path) -> None:
    """Refuse a base's folder whose config is not JSON, or names a type of model that transformers would print.

    Raises:
        BaseError: with the file.
    """
    file = folder / "config.json"
    stored = read_json(file, BaseError, REMEDY) if file.exists() else {}
    kind = stored.get("model_type", "")
    if not isinstance(kind, str) or not re.fullmatch(r"[\w.-]{0,64}", kind):
        raise BaseError(f"{file}: model_type is not a name of a model; {REMEDY}")
    labels = stored.get("num_labels", 2)  # transformers writes a name for each as it reads the config
    if not isinstance(labels, int) or not 0 <= labels <= _MOST_LABELS:
        raise BaseError(f"{file}: num_labels is {str(labels)[:40]}, not 0 to {_MOST_LABELS}; {REMEDY}")
