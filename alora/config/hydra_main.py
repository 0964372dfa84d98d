"""Hydra itself, for what a single run does without: ``--cfg`` and its like, completion by TAB, and sweeps.

It composes nothing that runs. It is given the settings as :mod:`alora.config.compose` made them, or the schema's own
keys to complete and to sweep over, and reads no file but alora's.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from alora.config.arguments import COMPOSING, Arguments
from alora.config.describe import verb_help
from alora.config.line import explained, folders_of, is_of_hydra
from alora.config.option_files import Folders
from alora.config.paths import configs_folder
from alora.config.schema import Recipe
from alora.config.secrets import redacted
from alora.errors import ConfigError
from alora.text import printable


def show(arguments: Arguments, settings: DictConfig) -> None:
    """Print what the flags of ``arguments`` ask for: ``settings``, or help on their keys. Secrets are hidden."""
    values, printed = OmegaConf.to_container(settings), io.StringIO()
    flags = {name: value for name, value in arguments.options.items() if name not in COMPOSING}
    words = [f"{name}={value}" if value and name != "--help" else name for name, value in flags.items()]
    try:
        with contextlib.redirect_stdout(printed), explained():
            if flags.get("--help") == "":
                sys.stdout.write(verb_help(arguments.verb, values, folders_of(arguments).options))
            else:
                run_hydra(arguments.verb, [*words, *filter(is_of_hydra, arguments.overrides)], values, lambda _: None)
    finally:
        sys.stdout.write(printable(redacted(printed.getvalue())))


def complete(argv: Sequence[str], verbs: Sequence[str]) -> None:
    """Hydra's ``-sc install=SHELL``, and the shell's question that follows: a verb, then settings and flags."""
    program, _, rest = os.environ.get("COMP_LINE", "").lstrip().partition(" ")
    _, space, words = rest.lstrip().partition(" ")
    asked = any(item.startswith("query=") for item in argv)
    if asked and not space:
        sys.stdout.write(" ".join(verbs) + "\n")
        return
    os.environ["COMP_LINE"] = f"{program} {words}"
    try:
        run_hydra("", argv, asdict(Recipe()), lambda _: None)
    except Exception as error:
        if not asked:  # else nothing fits what is typed so far
            raise ConfigError(f"{' '.join(argv)}: {error}") from error


def run_hydra(verb: str, words: Sequence[str], settings: Any, task: Callable[[DictConfig], object]) -> None:
    """``hydra.main`` on a command line of ``words``, which it reads from ``sys.argv``; ``settings`` are its schema."""
    ConfigStore.instance().store(name="schema", node=settings)
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"alora {verb}".rstrip(), *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else it prints exceptions and exits
    try:
        hydra.main(config_path=str(configs_folder()), config_name="config", version_base="1.3")(task)()
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def offer_options(folders: Folders) -> None:
    """Make the names of a user's own options known to Hydra; what is in them, alora reads."""
    for folder in folders.paths[1:]:
        for file in (*folder.glob("*/*.yaml"), *folder.glob("*/*/*.yaml")):
            group = str(file.parent.relative_to(folder))
            if not group.startswith("hydra"):
                ConfigStore.instance().store(file.stem, {}, group=group, package="_global_")
