"""What a folder is that a user named: a run, a bundle, a battery or a bare adapter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from alora.adapter import CONFIG_FILE
from alora.bundle.battery import BATTERY_FILE
from alora.bundle.manifest import MANIFEST_FILE
from alora.errors import BundleError
from alora.reading import require_plain

RUN_FILE = "run.yaml"
_OF_A_RUN = (RUN_FILE, "inputs.json", "training.json", "evaluation.json", "identity.json", "adapter", "bundle",
             "policies", "battery")  # fmt: skip


class Kind(Enum):
    """The kinds of folder, by the file that marks each."""

    RUN = RUN_FILE
    BATTERY = BATTERY_FILE
    BUNDLE = MANIFEST_FILE
    ADAPTER = CONFIG_FILE


@dataclass(frozen=True)
class Artifact:
    """A folder of a known kind. For a run, ``adapter`` and ``bundle`` lie inside it, when they are there."""

    kind: Kind
    folder: Path

    @property
    def bundle(self) -> Path | None:
        """The bundle's folder, or None."""
        if self.kind is Kind.BUNDLE:
            return self.folder
        inside = self.folder / "bundle"
        return inside if self.kind is Kind.RUN and (inside / MANIFEST_FILE).is_file() else None

    @property
    def adapter(self) -> Path | None:
        """The folder with the PEFT files, or None."""
        if self.kind in (Kind.BUNDLE, Kind.ADAPTER):
            return self.folder
        inside = self.folder / "adapter"
        return inside if self.kind is Kind.RUN and (inside / CONFIG_FILE).is_file() else None

    @property
    def run_file(self) -> Path | None:
        """The ``run.yaml`` that this artifact came from: in the run, or beside a bundle or adapter that lies in one."""
        for folder in (self.folder, self.folder.absolute().parent):
            if (folder / RUN_FILE).is_file():
                return folder / RUN_FILE
        return None


def find_artifact(folder: Path | str) -> Artifact:
    """Tell what ``folder`` is. A run of several policies is its battery.

    Raises:
        BundleError: it is missing, holds none of the files that mark an artifact, or something in it is a link.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BundleError(f"artifact {folder} is not a folder; give a run folder, a bundle, a battery or an adapter")
    for run in (folder, folder.absolute().parent):  # an adapter or bundle may lie in its run
        if (run / RUN_FILE).is_symlink() or (run / RUN_FILE).exists():
            require_plain(run, BundleError, *_OF_A_RUN)
    for kind in Kind:
        if (folder / kind.value).is_file():
            if kind is not Kind.RUN:
                require_plain(folder, BundleError)
            battery = folder / "battery"
            of_several = kind is Kind.RUN and (battery / BATTERY_FILE).is_file()
            return Artifact(Kind.BATTERY, battery) if of_several else Artifact(kind, folder)
    marks = ", ".join(kind.value for kind in Kind)
    raise BundleError(f"{folder} is no artifact of alora: it holds none of {marks}")
