"""What ``artifact=`` and ``bundles=`` name, as bundles on one base. Imports no torch."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from alora.bundle.artifact import Artifact, Kind, find_artifact
from alora.bundle.battery import Read, require_one_base
from alora.bundle.light import LightBundle
from alora.bundle.manifest import read_manifest
from alora.config.paths import HUB_ID
from alora.config.schema import BaseSettings, Recipe
from alora.errors import BundleError, ConfigError
from alora.layout import RUN_FILE
from alora.notes import note

Item = TypeVar("Item")
NO_BUNDLE = "no bundle is given; add artifact=DIR (a bundle, a run or a battery) or bundles=[A,B]"


def named_artifacts(recipe: Recipe) -> list[str]:
    return [*([recipe.artifact] if recipe.artifact else []), *recipe.bundles]


def read_bundles(
    named: Sequence[str], base: BaseSettings, policies: Sequence[str], read: Callable[[Path], Read]
) -> tuple[list[Read], BaseSettings]:
    """The bundles in the folders ``named`` (a run or a battery holds several), and the base they share.

    ``policies`` takes only those that it lists, of all folders together.
    """
    if not named:
        raise ConfigError(NO_BUNDLE)
    found: list[tuple[Read, Artifact]] = []
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
    read: Callable[[Path], Read],
) -> tuple[list[Read], BaseSettings]:
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
    for name, folder in artifact.members.items():
        with contextlib.suppress(BundleError):  # what is wrong is said where it is opened
            name = read_manifest(folder).policy.id if folder in artifact.bundles else name
        if name in found:
            raise BundleError(f"{found[name]} and {folder} are both of the policy {name}; list one of them")
        found[name] = folder
    return found


def base_of_bundle(bundle: LightBundle, artifact: Artifact, given: BaseSettings) -> BaseSettings:
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
