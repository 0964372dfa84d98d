"""What is served, as a file that every process of a server reads: a restart and a second process are one case.

``serving_set.json`` lies in the serving root next to the bundles' folders, and is replaced as a whole.
"""

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from alora.atomic import write_json
from alora.bundle.light import LightBundle
from alora.bundle.manifest import served_name
from alora.errors import BundleError
from alora.received import Folder

FILE = "serving_set.json"
SERVING_ROOT = "ALORA_SERVING_ROOT"  # the folder below which bundles are loaded while a vLLM server runs
Stamp = tuple[int, int] | None


@dataclass(frozen=True)
class Entry:
    """One policy: its bundle's folder below the root, the digests of its weights and of its manifest, live or shadow,
    and its tags."""

    policy: str
    bundle: str
    digest: str
    manifest: str
    stage: str
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stage not in ("live", "shadow"):
            raise ValueError(f"stage is {self.stage[:40]!r}, not live or shadow")

    @property
    def name(self) -> str:
        return served_name(self.policy, self.digest)

    @property
    def version(self) -> tuple[str, str]:
        """Which bundle it is, whatever its folder; as :attr:`~alora.guard.reader.Served.version`."""
        return self.name, self.manifest


@dataclass(frozen=True)
class _Content:
    schema_version: int
    policies: tuple[Entry, ...]


class ServingSet:
    """The file in ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def stamp(self) -> Stamp:
        """Changes whenever the file is replaced; None while there is none."""
        try:
            state = (self.root / FILE).lstat()
        except FileNotFoundError:
            return None
        except OSError:  # nobody can say what is in it; :meth:`read` says why
            return 0, 0
        return state.st_ino, state.st_mtime_ns

    def read(self) -> tuple[Entry, ...]:
        """The entries.

        Raises:
            BundleError: the file is damaged, no file, newer than this alora, or without a live policy.
        """
        file = self.root / FILE
        received = Folder(self.root, BundleError, "remove it, and load the policies again", FILE)
        content = received.record(_Content, FILE, schema_version=1)
        stages = Counter((entry.policy, entry.stage) for entry in content.policies)
        if max(stages.values(), default=0) > 1 or not any(stage == "live" for _, stage in stages):
            raise BundleError(f"{file} has a policy twice in one stage, or none that is live; load the policies again")
        return content.policies

    def remark(self, given: Iterable[LightBundle]) -> str | None:
        """What to say at a start with the bundles ``given`` where the file names others; None: nothing."""
        if self.stamp is None:
            return None
        try:
            entries = self.read()
        except BundleError as error:
            return f"nothing is served yet: {error}"
        own = {(bundle.served_name, bundle.manifest.sha256, "live") for bundle in given}
        if {(*entry.version, entry.stage) for entry in entries} == own:
            return None
        shown = [f"{entry.name} of {entry.bundle}" + " (shadow)" * (entry.stage == "shadow") for entry in entries]
        return (
            f"{self.root / FILE} lists {', '.join(shown)}, as changed while a guard ran, and the guard serves these "
            "in their place; delete the file to serve those of the command line"
        )

    def write(self, entries: tuple[Entry, ...], stamp: Stamp) -> Stamp:
        """Replace the file that has ``stamp``, and return the new one's; None where another process replaced it
        meanwhile.

        Raises:
            BundleError: that is not possible.
        """
        try:
            with self._alone():
                if self.stamp != stamp:
                    return None
                write_json(self.root / FILE, asdict(_Content(1, entries)))
                return self.stamp
        except OSError as error:
            raise BundleError(f"{self.root / FILE} cannot be written: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The root's lock, which all processes take that write there, and hold for the time of a write."""
        held = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def folder(self, name: str) -> Path:
        """The bundle's folder that ``name`` means, which lies below the root, no link on the way.

        Raises:
            BundleError: it does not.
        """
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
            raise BundleError(f"bundle is {name[:200]!r}; name a folder below the serving root")
        folder = self.root
        try:
            for part in parts:
                folder = folder / part
                if folder.is_symlink():
                    raise BundleError(f"bundle is {name[:200]!r}, on whose way is a link; copy the folder itself")
            found = folder.is_dir()
        except OSError as error:
            raise BundleError(f"bundle is {name[:200]!r}: {error.strerror}; name a folder below the root") from error
        if not found:
            raise BundleError(f"bundle is {name[:200]!r}, which is not a folder below the serving root")
        return folder


def serving_set_of(folders: Iterable[Path], root: str | None) -> ServingSet:
    """The one in ``root``, or else in the folder that holds all bundles' ``folders``."""
    return ServingSet(Path(root or os.path.commonpath([folder.absolute().parent for folder in folders])))
