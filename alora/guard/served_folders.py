"""Whether the folders of what is served still hold what was loaded: a restart has nothing else."""

import os
from collections.abc import Iterable
from pathlib import Path

from alora.bundle.light import Bundle, read_bundle
from alora.bundle.read import load_bundle
from alora.errors import AloraError, BundleError
from alora.guard.serving_set import FILE, Entry, ServingSet

_Stamp = tuple[tuple[str, int, int, int], ...] | None  # name, inode, size and time of each file; None: no folder


class ServedFiles:
    """The bundles' folders below the serving set's root. ``given`` were read a moment ago."""

    def __init__(self, serving_set: ServingSet, given: Iterable[Entry]) -> None:
        self._set = serving_set
        # By folder and version: the folder's files, and what is wrong with them.
        self._seen: dict[tuple[str, tuple[str, str]], tuple[_Stamp, str | None]] = {}
        for entry in given:
            self._seen[entry.bundle, entry.version] = _stamp(serving_set.root / entry.bundle), None

    def load(self, folder: str) -> Bundle:
        """The bundle in ``folder``; BundleError where it is none."""
        at = self._set.folder(folder)
        stamp = _stamp(at)
        bundle = load_bundle(at)
        self._seen[folder, (bundle.served_name, bundle.manifest.sha256)] = stamp, None
        return bundle

    def faults(self, entries: Iterable[Entry]) -> list[str]:
        """What is wrong, by folder; only files that changed are read."""
        return [fault for entry in entries if (fault := self._fault(entry)) is not None]

    def _fault(self, entry: Entry) -> str | None:
        key, stamp = (entry.bundle, entry.version), _stamp(self._set.root / entry.bundle)
        before, fault = self._seen.get(key, ((), None))
        if stamp != before:
            try:
                require_bundle_of(entry, read_bundle(self._set.folder(entry.bundle)))
            except (AloraError, OSError) as error:
                fault = f"{entry.name} is served from memory, and a restart could not: {error}"
            else:
                fault = None
            self._seen[key] = stamp, fault
        return fault


def _stamp(folder: Path) -> _Stamp:
    try:
        with os.scandir(folder) as files:
            states = [(file.name, file.stat()) for file in files]
    except OSError:
        return None
    return tuple(sorted((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states))


def require_bundle_of(entry: Entry, bundle: Bundle) -> None:
    """BundleError unless ``bundle`` is what the serving set says."""
    if bundle.policy.id != entry.policy:
        raise BundleError(f"{entry.bundle} answers policy {bundle.policy.id!r}, not {entry.policy[:80]!r}")
    if (bundle.manifest.adapter_digest, bundle.manifest.sha256) != (entry.digest, entry.manifest):
        raise BundleError(
            f"{entry.bundle} has changed since it was loaded; load the policy again, or, if the guard serves nothing "
            f"yet, put the old files back, or delete {FILE}, which forgets every PUT and DELETE, and restart it"
        )
