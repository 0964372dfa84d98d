"""The settings by name, and the name that was probably meant."""

import difflib
from typing import Any

from alora.config.schema import Recipe
from alora.config.setting import settings_of

TYPES: dict[str, Any] = {key: kind for key, kind, _ in settings_of(Recipe)}
# What is meant by a name that several sections have, or that other libraries use.
_MEANT = {
    "seed": "training.seed",
    "rank": "adapter.rank",
    "r": "adapter.rank",
    "lora_alpha": "adapter.alpha",
    "target_modules": "adapter.targets",
    "model": "base.source",
    "model_name_or_path": "base.source",
    "lr": "training.learning_rate",
    "num_train_epochs": "training.epochs",
    "per_device_train_batch_size": "training.batch_size",
    "output_dir": "run_dir",
    "report_to": "tracking.kind",
}


def nearest_key(key: str) -> str | None:
    """The key of the schema that was probably meant, or None."""
    name = key.rpartition(".")[2]
    names = {known.rpartition(".")[2]: known for known in TYPES} | {known: known for known in TYPES}
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.75)
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return _MEANT.get(name) or (names[close[0]] if close else None)


def unknown_key_message(key: str) -> str:
    meant = nearest_key(key)
    return f"unknown key '{key}': {f'did you mean {meant!r}?' if meant and meant != key else '--help lists every key'}"
