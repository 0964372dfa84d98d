"""What ``artifact=`` and ``bundles=`` name: the kind of each folder (a run, a bundle, a battery or a bare adapter), the
adapters in it, and the bundles of all on one base. Imports no torch."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from alora.adapter import CONFIG_FILE
from alora.bundle.battery import BATTERY_FILE, battery_folders, require_one_base
from alora.bundle.light import Bundle
from alora.bundle.manifest import MANIFEST_FILE, read_manifest
from alora.config.paths import HUB_ID
from alora.config.schema import BaseSettings, Recipe
from alora.errors import BundleError, ConfigError
from alora.text import note
from alora.training.layout import ADAPTER, BATTERY, OUTPUTS, POLICIES, RUN_FILE, own_link, require_plain_run, run_of


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
    def members(self) -> tuple[Path, ...]:
        """The bundles, or before there are any the adapters."""
        if not (self.bundles or self.adapters):
            raise BundleError(f"{self.folder} holds no adapter yet; run `alora train` on it to the end")
        return self.bundles or self.adapters

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
                listed = (folder / BATTERY / BATTERY_FILE).is_file()
                bundles = battery_folders(folder / BATTERY) if listed else []
                adapters = (file.parent for file in sorted(folder.glob(f"{POLICIES}/*/{ADAPTER}/{CONFIG_FILE}")))
                return Artifact(kind, folder, tuple(bundles), tuple(adapters), run)
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


Item = TypeVar("Item")
NO_BUNDLE = "no bundle is given; add artifact=DIR (a bundle, a run or a battery) or bundles=[A,B]"


def named_artifacts(recipe: Recipe) -> list[str]:
    return [*([recipe.artifact] if recipe.artifact else []), *recipe.bundles]


def read_bundles(
    named: Sequence[str], base: BaseSettings, policies: Sequence[str], read: Callable[[Path], Bundle]
) -> tuple[list[Bundle], BaseSettings]:
    """The bundles in the folders ``named`` (a run or a battery holds several), and the base they share.

    ``policies`` takes only those that it lists, of all folders together.
    """
    if not named:
        raise ConfigError(NO_BUNDLE)
    found: list[tuple[Bundle, Artifact]] = []
    for artifact in map(find_artifact, named):
        if not artifact.bundles:
            has_adapter = artifact.adapters or artifact.kind is not Kind.RUN
            remedy = "make one with `alora export`" if has_adapter else "run its `alora train` to the end"
            raise ConfigError(f"{artifact.folder} holds no bundle, and only a bundle knows its threshold; {remedy}")
        opened = [read(folder) for folder in artifact.bundles]
        require_one_base(opened)
        found += [(bundle, artifact) for bundle in opened]
    _require_chosen([bundle.policy.id for bundle, _ in found], policies, ", ".join(named))
    wanted = [(bundle, artifact) for bundle, artifact in found if is_chosen(bundle.policy.id, policies)]
    require_one_base([bundle for bundle, _ in wanted])
    return [bundle for bundle, _ in wanted], base_of_bundle(*wanted[0], base)


def open_artifact(
    artifact: str | Path | Sequence[str | Path],
    base: str | Path | BaseSettings | None,
    policies: Sequence[str],
    read: Callable[[Path], Bundle],
) -> tuple[list[Bundle], BaseSettings]:
    """What :func:`alora.load` takes as ``artifact``, as bundles; a hub id is fetched first."""
    from alora.bundle.hub import fetch_bundle  # huggingface_hub, which takes a while

    names = map(str, [artifact] if isinstance(artifact, str | Path) else artifact)
    folders = [name if Path(name).exists() or not HUB_ID.fullmatch(name) else str(fetch_bundle(name)) for name in names]
    settings = base if isinstance(base, BaseSettings) else BaseSettings(source=None if base is None else str(base))
    return read_bundles(folders, settings, policies, read)


def chosen(
    items: Mapping[str, Item], policies: Sequence[str], artifact: Artifact, all_of: bool = False
) -> dict[str, Item]:
    """Of several items those that ``policies`` name, all where it is empty or ``*``; a note on any that is missing."""
    _require_chosen([*items], policies, str(artifact.folder), all_of)
    return {name: item for name, item in items.items() if is_chosen(name, policies)}


def _require_chosen(ids: Sequence[str], policies: Sequence[str], place: str, all_of: bool = False) -> None:
    missing = [name for name in policies if name not in ids and "*" not in policies]
    if missing and (all_of or len(missing) == len(policies)):
        raise ConfigError(f"{place} has no policy {', '.join(missing)}; it has {', '.join(ids)}")
    if missing:
        note(f"{place} has no policy {', '.join(missing)}; going on without")


def is_chosen(name: str, policies: Sequence[str]) -> bool:
    """Whether ``policies`` take the policy ``name`` of an artifact."""
    return not policies or "*" in policies or name in policies


def members_by_policy(artifact: Artifact) -> dict[str, Path]:
    """The artifact's members by their policies, whatever their folders are called; a damaged one by its folder."""
    found: dict[str, Path] = {}
    for folder in artifact.members:
        name = folder.parent.name if folder.name == ADAPTER and not artifact.bundles else folder.name
        with contextlib.suppress(BundleError):  # what is wrong is said where it is opened
            name = read_manifest(folder).policy.id if folder in artifact.bundles else name
        if name in found:
            raise BundleError(f"{found[name]} and {folder} are both of the policy {name}; list one of them")
        found[name] = folder
    return found


def base_of_bundle(bundle: Bundle, artifact: Artifact, given: BaseSettings) -> BaseSettings:
    """The base to load for ``bundle``: the one given, else the manifest's; its run has the path of a local one."""
    if given.source is None and bundle.manifest.base.local and (run := saved_run(artifact)) is not None:
        given = replace(given, source=run.base.source)
    return bundle.base_settings(given)


def saved_run(artifact: Artifact) -> Recipe | None:
    """The recipe of the run that an artifact belongs to, or None."""
    if artifact.run is None:
        return None
    return _read_recipe(artifact.run / RUN_FILE, (artifact.run / RUN_FILE).stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)  # a tenth of a second, for each bundle of a battery
def _read_recipe(file: Path, _changed: int) -> Recipe:
    from alora.config.saved import read_saved_recipe  # OmegaConf, which clients of a server go without

    return read_saved_recipe(file)
