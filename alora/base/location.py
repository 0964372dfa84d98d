"""Where a base lies: the folder or hub id that any loader takes, fetched or converted first where needed."""

from pathlib import Path

from alora.base import smollm2
from alora.base.gguf import converted
from alora.config.paths import is_gguf
from alora.config.schema import BaseSettings
from alora.errors import BaseError


def base_location(settings: BaseSettings, progress: bool = True) -> str:
    """The folder or hub id that any loader takes for ``settings``; "smollm2" is fetched and a GGUF file converted when
    the cache does not hold them yet."""
    source = settings.source
    if source is None:
        raise BaseError("no base chosen; add base=smollm2, base=qwen3_4b, ... or base.source=ID_FOLDER_OR_GGUF")
    if source == smollm2.NAME:
        return str(smollm2.ensure_smollm2(progress))
    if is_gguf(source):
        return str(converted(Path(source)))
    if Path(source).is_absolute() and not Path(source).is_dir():
        raise BaseError(f"base folder {source} does not exist; check base.source")
    return source
