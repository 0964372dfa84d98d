"""Settings that a user brings along from PEFT, TRL and transformers: what alora calls them, or why it has none.

They stand in ``elsewhere.yaml``.
"""

from pathlib import Path

import yaml

_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
REFUSED: dict[str, str] = {name: entry["why"] for entry in _TABLES["none"] for name in entry["names"].split()}
RENAMED: dict[str, str] = {name: key for key, names in _TABLES["another_name"].items() for name in names.split()}
REFUSED_VALUES: dict[tuple[str, str], str] = {
    (key, value): why for key, reasons in _TABLES["values"].items() for value, why in reasons.items()
}


def advice(key: str) -> str | None:
    """What to say about a key that other libraries have, by its last part; None for a key of nobody's."""
    name = key.rpartition(".")[2]
    if name in REFUSED:
        return f"alora has no '{key}': {REFUSED[name]}"
    if name in RENAMED:
        return f"alora has no '{key}'; here it is {RENAMED[name]}"
    return None
