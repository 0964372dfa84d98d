"""``alora new NAME``: a recipe folder that ``alora train`` runs as it is, to be made the user's own."""

import re
import shlex
from pathlib import Path

from alora.atomic import workshop
from alora.commands.output import say
from alora.config.schema import Recipe
from alora.data.scaffold import scaffold
from alora.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def run(recipe: Recipe) -> int:
    """Write the folder ``NAME`` here (or ``output``), whole or not at all; the exit code."""
    if recipe.name == Recipe().name:
        raise ConfigError("alora new needs a name: alora new my_policy")
    if not _NAME.fullmatch(recipe.name):
        raise ConfigError(f"name is {recipe.name!r}; use letters, digits, '_', '-' and '.', as in my_policy")
    folder = Path(recipe.output) if recipe.output else Path.cwd() / recipe.name
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} is there already; choose another name, or remove it")
    try:
        with workshop(folder) as stage:
            staged = stage / folder.name
            staged.mkdir()
            for name, text in scaffold(recipe.name).items():
                (staged / name).write_text(text, encoding="utf-8")
            staged.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}; choose another place") from error
    say(f"{folder} holds a recipe, a policy and rows to try it on. Next:\n")
    say(f"  cd {shlex.quote(str(folder)) if recipe.output else recipe.name}\n  alora check\n  alora train")
    return 0
