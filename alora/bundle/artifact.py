"""What kind of folder a user named (a run, a bundle, a battery or a bare adapter), and the adapters in it."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from alora.adapter import CONFIG_FILE
from alora.bundle.battery import BATTERY_FILE, battery_folders
from alora.bundle.manifest import MANIFEST_FILE
from alora.errors import BundleError
from alora.layout import ADAPTER, BATTERY, OUTPUTS, POLICIES, RUN_FILE, own_link, require_plain_run, run_of


class Kind(Enum):
    """The kinds of folder, by the file that marks each."""

    RUN = RUN_FILE
    BATTERY = BATTERY_FILE
    BUNDLE = MANIFEST_FILE
    ADAPTER = CONFIG_FILE


@dataclass(frozen=True)
class Artifact:
    """A folder of a known kind, with the bundles and the PEFT folders in it; ``run`` is the run that it belongs to.

    A bundle or an adapter holds itself. Of a run, only bundles that its ``battery.json`` lists count.
    """

    kind: Kind
    folder: Path
    bundles: tuple[Path, ...]
    adapters: tuple[Path, ...]
    run: Path | None

    @property
    def members(self) -> dict[str, Path]:
        """The bundles, or before there are any the adapters, by the name of their policy's folder."""
        if not (self.bundles or self.adapters):
            raise BundleError(f"{self.folder} holds no adapter yet; run `alora train` on it to the end")
        in_run = {folder.parent.name if folder.name == ADAPTER else folder.name: folder for folder in self.adapters}
        return {folder.name: folder for folder in self.bundles} or in_run

    @property
    def several(self) -> bool:
        """Whether it stands for a list of policies, of which a command may choose."""
        return self.kind is Kind.BATTERY or max(len(self.bundles), len(self.adapters)) > 1


def find_artifact(folder: Path | str) -> Artifact:
    """The kind of ``folder``, and what it holds."""
    folder = own_link(Path(folder)) or Path(folder)
    if not folder.is_dir():
        raise BundleError(f"artifact {folder} is not a folder; give a run folder, a bundle, a battery or an adapter")
    run = run_of(folder)
    if run is not None:
        _require_plain(run)
    for kind in Kind:
        if (folder / kind.value).is_file():
            if kind is Kind.RUN:
                return Artifact(kind, folder, _bundles(folder), _adapters(folder), run)
            several = tuple(battery_folders(folder)) if kind is Kind.BATTERY else (folder,)
            return Artifact(kind, folder, () if kind is Kind.ADAPTER else several, several, run)
    marks = ", ".join(kind.value for kind in Kind)
    raise BundleError(f"{folder} is not an artifact of alora: it holds none of {marks}")


def _require_plain(run: Path) -> None:
    """Of its battery what is listed, of anything else all."""
    battery = run / BATTERY
    listed = (battery / BATTERY_FILE).is_file() and not battery.is_symlink()
    require_plain_run(run, BundleError, [name for name in OUTPUTS if not (listed and name == BATTERY)])
    if listed:
        battery_folders(battery)


def _bundles(run: Path) -> tuple[Path, ...]:
    if (run / BATTERY / BATTERY_FILE).is_file():
        return tuple(battery_folders(run / BATTERY))
    return ()


def _adapters(run: Path) -> tuple[Path, ...]:
    return tuple(file.parent for file in sorted(run.glob(f"{POLICIES}/*/{ADAPTER}/{CONFIG_FILE}")))
