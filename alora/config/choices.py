"""What the command line chooses, option by option, as Hydra itself resolves it: packages, lists, options in options."""

import contextlib
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from alora.config.precedence import Choices
from alora.config.received import read_settings
from alora.config.schema import OPEN_DICTIONARIES
from alora.errors import ConfigError
from alora.typed import leaves

ALORAS_OWN = "config"  # the primary config where the command line names none


def keys_given(overrides: Sequence[Override]) -> frozenset[str]:
    """The keys that ``overrides`` set, those inside a mapping apart: ``data={label_map: {a: b}}`` sets
    ``data.label_map.a``."""
    values = [(item.key_or_group, None if item.is_delete() else item.value()) for item in overrides]
    return frozenset(name for key, value in values for name, _ in leaves(value, key))


def choices(config_name: str, overrides: Sequence[str], aloras_own: bool) -> Choices:
    """What a command line sets by itself, and what the recipe and the primary config under it set. Hydra must be
    initialised, and have composed them.

    Args:
        overrides: Hydra's own among them.
        aloras_own: whether a primary config of the name ``config`` is alora's.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    searching = [item for item in parsed if item.key_or_group == "hydra.searchpath"]
    recipe = [item for item in parsed if item.key_or_group == "recipe"]
    rest = [item for item in parsed if not (item in searching or item in recipe or item.is_hydra_override())]
    whole = _defaults(config_name, [*searching, *recipe, *rest])
    own = _defaults(ALORAS_OWN, searching).defaults if aloras_own else []
    chosen = recipe or not aloras_own or config_name != ALORAS_OWN
    below = _defaults(config_name, [*searching, *recipe]).defaults if chosen else own
    aloras = {_place(entry) for entry in own}
    by_key = [item.input_line for item in whole.config_overrides]
    groups = {_key(item) for item in rest if item.input_line not in by_key}
    known = {_place(entry) for entry in below}
    options = [entry for entry in whole.defaults if _place(entry) not in known or entry.override_key in groups]
    under = [entry for entry in below if _place(entry) not in aloras and entry.config_path != "schema"]
    keys = keys_given([item for item in rest if item.input_line in by_key])
    return Choices(keys, _values(options), {key: value for key, (_, value) in _values(under).items()})


def _place(entry: ResultDefault) -> tuple[str | None, str | None]:
    return entry.config_path, entry.package


def _key(item: Override) -> str:
    return item.key_or_group + (f"@{item.package}" if item.package else "")


def _defaults(config_name: str, overrides: Iterable[Override]) -> Any:
    """Hydra's defaults list, in the order in which it merges; an option that is still to be chosen is left out."""
    lines = [str(item.input_line) for item in overrides]
    return GlobalHydra.instance().config_loader().compute_defaults_list(config_name, lines, RunMode.MULTIRUN)


def _values(entries: Iterable[ResultDefault]) -> dict[str, tuple[str, Any]]:
    """What ``entries`` set, by key, with the option that sets it; the last one counts. An open dictionary is one
    value."""
    found: dict[str, tuple[str, Any]] = {}
    for path, entry in ((str(entry.config_path), entry) for entry in entries):
        if path.startswith("hydra/"):
            continue
        package = "" if entry.package in (None, "_global_") else str(entry.package)
        for key, value in _settings(_content(path), package):
            found[key] = ("=".join(path.rsplit("/", 1)), value)
    return found


def _settings(value: Any, key: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and key not in OPEN_DICTIONARIES:
        for name, inner in value.items():
            yield from _settings(inner, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, value


def _content(path: str) -> dict[str, Any]:
    """The plain values of one config, where Hydra found it.

    Raises:
        ConfigError: it is in none of Hydra's sources.
    """
    runtime, name = HydraConfig.get().runtime, f"{path.removesuffix('.yaml')}.yaml"
    for source in runtime.config_sources:
        values = None
        if source.schema == "structured":
            with contextlib.suppress(OSError):  # it is not there
                values = OmegaConf.to_container(ConfigStore.instance().load(name).node)
        elif source.schema in ("file", "pkg") and source.path:
            # A job may have another working folder by now.
            folder = str(importlib.resources.files(source.path)) if source.schema == "pkg" else source.path
            file = Path(runtime.cwd) / folder / name
            values = (read_settings(file) or {}) if file.is_file() else None
        if isinstance(values, Mapping):
            return {str(key): value for key, value in values.items() if key != "defaults"}
    raise ConfigError(f"{path}: Hydra composed it, and it cannot be read again; give its values as key=value")
