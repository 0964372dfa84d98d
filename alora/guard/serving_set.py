"""What is served, as a file that every process of a server reads: a restart and a second process are one case.

``serving_set.json`` lies in the serving root next to the bundles' folders, and is replaced as a whole.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import AsyncFileLock

from alora.atomic import write_json
from alora.bundle.light import Bundle
from alora.bundle.manifest import served_name
from alora.errors import BundleError
from alora.received import read_record
from alora.wire.native import Action

FILE = "serving_set.json"
SERVING_ROOT = "ALORA_SERVING_ROOT"  # the folder below which bundles are loaded while a vLLM server runs
Stamp = tuple[int, int] | None


@dataclass(frozen=True)
class Entry:
    """One policy: its bundle's folder below the root, the digests of its weights and of its manifest, what
    follows where it is flagged, and its tags."""

    policy: str
    bundle: str
    digest: str
    manifest: str
    action: Action
    tags: tuple[str, ...] = ()

    @property
    def slot(self) -> tuple[str, bool]:
        """A policy has one version that is reported, and one that is only logged."""
        return self.policy, self.action == "log"

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
            state = (self.root / FILE).stat()
        except FileNotFoundError:
            return None
        except OSError:  # nobody can say what is in it; :meth:`read` says why
            return 0, 0
        return state.st_ino, state.st_mtime_ns

    def read(self) -> tuple[Entry, ...]:
        """The entries; BundleError where the file is damaged, of another version, or without a policy."""
        file, remedy = self.root / FILE, "remove it, and load the policies again"
        policies = read_record(_Content, file, BundleError, remedy, schema_version=1).policies
        if not policies or len({entry.slot for entry in policies}) < len(policies):
            raise BundleError(f"{file} has no policy, or one twice; {remedy}")
        return policies

    def remark(self, given: Iterable[Bundle]) -> str | None:
        """What to say at a start with the bundles ``given`` where the file names others; None: nothing."""
        if self.stamp is None:
            return None
        try:
            entries = self.read()
        except BundleError as error:
            return f"nothing is served yet: {error}"
        own = {(bundle.served_name, bundle.manifest.sha256, "block") for bundle in given}
        if {(*entry.version, entry.action) for entry in entries} == own:
            return None
        shown = [f"{entry.name} of {entry.bundle} ({entry.action})" for entry in entries]
        return (
            f"{self.root / FILE} lists {', '.join(shown)}, as changed while a guard ran, and the guard serves these "
            "in their place; delete the file to serve those of the command line"
        )

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """No other process changes the file meanwhile; BundleError where none can be written."""
        lock = AsyncFileLock(self.root / f".{FILE}.lock")
        try:
            await lock.acquire()
        except OSError as error:
            raise BundleError(f"{self.root} cannot be written: {error.strerror or error}") from error
        try:
            yield
        finally:
            await lock.release()

    def write(self, entries: tuple[Entry, ...]) -> Stamp:
        """Replace the file, and return the new one's stamp; BundleError where it cannot be written."""
        try:
            write_json(self.root / FILE, asdict(_Content(1, entries)))
        except OSError as error:
            raise BundleError(f"{self.root / FILE} cannot be written: {error.strerror or error}") from error
        return self.stamp

    def folder(self, name: str) -> Path:
        """The bundle's folder that ``name`` means; BundleError for one that does not lie below the root."""
        root = self.root.resolve()
        folder = (root / name).resolve()
        if root not in folder.parents or not folder.is_dir():
            raise BundleError(f"bundle is {name[:200]!r}, which is not a folder below the serving root")
        return folder


def serving_set_of(folders: Iterable[Path], root: str | None) -> ServingSet:
    """The one in ``root``, or else in the folder that holds all bundles' ``folders``."""
    return ServingSet(Path(root or os.path.commonpath([folder.absolute().parent for folder in folders])))
