"""A ``bench.json`` of the serving benchmark, read back: whole, or refused with what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alora.bench.serving.marks import rate_text
from alora.errors import ConfigError

_SHAPE: dict[str, type | tuple[type, ...]] = {
    "settings": dict, "settings.serving": dict, "settings.rounds": int, "settings.rank": int, "settings.seed": int,
    "settings.threads": int, "settings.battery": (str, type(None)), "base": dict, "adapter": dict, "prompt": dict,
    "engine": dict, "engine.name": str, "environment": dict, "dtype": str, "clock": str, "device": str, "ours": str,
    "cells": list,
}  # fmt: skip


def load_run(path: Path) -> dict[str, Any]:
    """Read a ``bench.json`` of the serving benchmark, or the folder that holds one.

    Raises:
        ConfigError: it is not there, not readable, damaged, or of another benchmark.
    """
    file = path / "bench.json" if path.is_dir() else path
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: no bench.json that can be read ({error})") from error
    if not isinstance(run, dict) or run.get("benchmark") != "serving":
        raise ConfigError(f"{file} is not a run of alora bench serving; give two that are")
    problem = _problem(run)
    if problem:
        raise ConfigError(f"{file} is damaged: {problem}; measure it again")
    return run


def _problem(run: Mapping[str, Any]) -> str | None:
    for key, kind in _SHAPE.items():
        value: Any = run
        for part in key.split("."):
            if part not in value:
                return f"{key} is missing"
            value = value[part]
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"{key} is {_short(value)}"
    for number, cell in enumerate(run["cells"]):
        problem = _cell_problem(cell)
        if problem:
            return f"cells[{number}]{problem}"
    loop = run.get("open_loop", [])
    if not isinstance(loop, list) or not all(map(_is_entry, loop)):
        return "open_loop holds something else than searched rates and populations"
    return None


def _is_entry(entry: Any) -> bool:
    """Whether the rate of an entry can be told."""
    try:
        return entry["kind"] != "rate" or bool(entry["arm"] and entry["population"] and rate_text(entry))
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _cell_problem(cell: Any) -> str | None:
    if not isinstance(cell, dict):
        return f" is {_short(cell)}"
    for key, kind in {"workload": str, "at": dict, "arms": dict, "ratios": list, "samples": list}.items():
        if not isinstance(cell.get(key), kind):
            return f".{key} is {_short(cell[key]) if key in cell else 'missing'}"
    if not all(map(_is_ratio, cell["ratios"])):
        return ".ratios holds something else than ratios"
    measured: set[tuple[str, int]] = set()
    for number, sample in enumerate(cell["samples"]):
        where = f".samples[{number}]"
        if not isinstance(sample, dict) or not isinstance(sample.get("arm"), str):
            return f"{where} names no arm"
        if not isinstance(sample.get("round"), int):
            return f"{where}.round is {_short(sample.get('round'))}"
        if (sample["arm"], sample["round"]) in measured:
            return f"{where}: {sample['arm']} has two samples of round {sample['round']}"
        measured.add((sample["arm"], sample["round"]))
        for key, value in (("ms", sample.get("ms")), ("scale", sample.get("scale", 1.0))):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                return f"{where}.{key} is {_short(value)} and no time"
    unmeasured = [arm for arm in cell["arms"] if arm not in {name for name, _ in measured}]
    return f" holds no sample of {', '.join(map(str, unmeasured))}" if unmeasured else None


def _is_ratio(entry: Any) -> bool:
    return isinstance(entry, dict) and {"baseline", "ratio"} <= entry.keys() and isinstance(entry.get("refused"), list)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
