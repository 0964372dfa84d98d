"""``alora.train``: the verb from Python; :mod:`alora.client.in_process` has what scores."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alora.commands.train import generate_rows, run
from alora.config.arguments import quoted
from alora.config.compose import load_recipe
from alora.config.schema import OPEN_DICTIONARIES
from alora.errors import CheckFailed, ConfigError
from alora.text import note


def train(recipe: str | Path | None = None, **settings: Any) -> Path:
    """``alora train``: returns the run folder, which :func:`load` takes.

    ``recipe`` is a recipe's name or file, ``settings`` what the command line takes as ``key=value``: ``name="x"``,
    ``data={"train": "a.jsonl"}``, or ``**{"training.seed": 1}``. AloraError says what the command line would print;
    CheckFailed: a policy of a battery was left out.
    """
    chosen = [] if recipe is None else [f"recipe={recipe}"]
    composed = load_recipe("train", [*chosen, *_overrides(settings)], note)
    if composed is None:
        raise ConfigError("alora.train takes settings, and no flags of the command line")
    if run(generate_rows(composed)):
        raise CheckFailed(f"{composed.run_dir} lacks policies that were left out; what was printed says why")
    return Path(composed.run_dir)


def _overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    overrides = []
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if key in OPEN_DICTIONARIES:  # whose keys are the user's, and may be no keys of Hydra's
            overrides.append(f"{key}={json.dumps(value, ensure_ascii=False)}")
        elif isinstance(value, Mapping):
            overrides += _overrides(value, f"{key}.")
        else:
            overrides.append(f"{key}={_written(value)}")
    return overrides


def _written(value: Any) -> str:
    """A value in Hydra's grammar, which is JSON's but for texts."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, str | Path):
        return quoted(str(value))
    return json.dumps(value)
