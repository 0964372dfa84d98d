"""Hydra, made to read files that anyone may have written."""

import contextlib
import copy
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import hydra._internal.hydra as hydra_itself
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from alora.config.convert import type_problems
from alora.config.paths import configs_folder
from alora.config.received import read_settings, require_bounded, require_settings_alone
from alora.errors import ConfigError

MOST_INCLUDED = 1000
_HYDRA = threading.RLock()  # Hydra's state is the process's: one thread composes at a time
RECIPE_FILE = "recipe file "  # opens the provider of a recipe that Hydra has in memory


class _Loader(ConfigLoaderImpl):
    """Sees each config where it comes to lie, whatever its package, and before any of it is used (1.3)."""

    def _process_config_searchpath(self, config_name: str | None, parsed_overrides: Any, repo: Any) -> None:
        load, count = repo.load_config, itertools.count()

        def counted(config_path: str) -> ConfigResult | None:
            if next(count) > MOST_INCLUDED:
                raise ConfigError(f"{config_path}: recipes include each other more than {MOST_INCLUDED} times")
            result = load(config_path)
            if result is not None:
                _require_settings_alone(result, config_path)
            return result

        repo.load_config = counted  # before the primary config, the first to be read, may name a search path
        super()._process_config_searchpath(config_name, parsed_overrides, repo)

    def _load_single_config(self, default: Any, repo: Any) -> ConfigResult:
        result = super()._load_single_config(default, repo)
        where = _require_settings_alone(result, str(default.config_path))
        values = OmegaConf.to_container(result.config)
        if where is not None and isinstance(values, dict):
            values.pop("hydra", None)
            problems = type_problems(values)
            if problems:
                raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
        return result

    def load_configuration(self, *given: Any, **named: Any) -> DictConfig:
        try:
            composed = super().load_configuration(*given, **named)
            require_bounded(OmegaConf.to_container(composed))
        except RecursionError as error:
            raise ConfigError("a recipe includes itself, or its references go on without end; take that out") from error
        return composed


class FileConfigSource(file_config_source.FileConfigSource):
    """Reads within bounds. Its name is that of Hydra's own, which a launcher's process would else register anew."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.exists():
            read_settings(path)
        return super().load_config(config_path)


def _require_settings_alone(result: ConfigResult, name: str) -> str | None:
    """The file behind a config, None for those of alora and of packages; ConfigError when it is more than settings."""
    provider, path = str(result.provider), str(result.path)
    folder = Path(path.removeprefix("file://"))
    if provider.startswith(RECIPE_FILE):
        where = provider.removeprefix(RECIPE_FILE)
    elif path.startswith("file://") and folder.resolve() != configs_folder().resolve():
        where = str(folder / f"{name.removesuffix('.yaml')}.yaml")
    else:
        return None
    require_settings_alone(OmegaConf.to_container(result.config), where)
    return where


@contextlib.contextmanager
def guarded_hydra() -> Iterator[None]:
    """Hydra with the bounds of this module, also in the processes that a launcher starts, for this thread alone.

    What an app that runs on Hydra itself has initialised and registered is out of sight, and put back.
    """
    module, singleton = cast("Any", hydra_itself), cast("Any", Singleton)
    with _HYDRA:
        plugins = Plugins.instance()  # registers Hydra's own sources, and the options that plugins bring
        registry, store, apps_own = SourcesRegistry.instance(), ConfigStore(), singleton._instances
        before = module.ConfigLoaderImpl, registry.types["file"]
        ours = copy.copy(store)
        ours.repo = {"hydra": copy.deepcopy(store.repo.get("hydra", {}))}
        singleton._instances = {Plugins: plugins, SourcesRegistry: registry, ConfigStore: ours}
        module.ConfigLoaderImpl, registry.types["file"] = _Loader, FileConfigSource
        try:
            yield
        finally:
            module.ConfigLoaderImpl, registry.types["file"] = before
            singleton._instances = apps_own
