"""``bench.json``: a whole run as dataclasses, written by :func:`record_json` and read by :func:`load_record`."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from alora.bench.intervals import Measured
from alora.bench.trials import Agreement, Cell, Refusal
from alora.errors import ConfigError

FORMAT = 2  # 1: the dictionaries of alora 0.1


@dataclass(frozen=True)
class AaRun:
    ratio: Measured | None
    refused: list[Refusal]


@dataclass(frozen=True)
class OfferedRate:
    """One offered rate, in conversations a second (0: one after another), and the milliseconds of its conversations.

    ``sustained``: answered about as fast as they came; ``complete``: not given up before its end.
    """

    rate: float
    complete: bool
    sustained: bool
    seconds: float
    ms: list[float]

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.ms, percent))

    def holds(self, target_ms: float) -> bool:
        """Whether the rate was carried to its end below the target, by a server that kept up with it."""
        return self.complete and self.sustained and bool(self.ms) and self.percentile(95) < target_ms


@dataclass
class LoadRecord:
    """A system under arrivals from a population of policies: a search of its rate (``kind`` rate), or one rate for some
    rounds (``kind`` population). ``reason``: why a population was not run.
    """

    kind: str
    system: str
    population: int
    target_ms: float
    slots: int
    distinct: int
    reason: str | None = None
    rates: list[OfferedRate] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    def bounds(self) -> tuple[float | None, float | None]:
        """The highest rate that held its target and the lowest that did not; None where there is no such."""
        loaded = [one for one in self.rates if one.rate > 0]
        held = [one.rate for one in loaded if one.holds(self.target_ms)]
        failed = [one.rate for one in loaded if not one.holds(self.target_ms)]
        return max(held, default=None), min(failed, default=None)

    def rate_text(self) -> str:
        """The highest rate in words: between two offered rates, or a bound where no edge was found."""
        held, failed = self.bounds()
        if self.refused:
            return "withheld"
        if held is None and failed is None:
            alone = any(one.holds(self.target_ms) for one in self.rates)
            return "stopped before any was offered" if alone else "none, not even one after another"
        if held is None:
            return f"< {failed:.2f}"
        return f">= {held:.2f}" if failed is None else f"{held:.2f} to {failed:.2f}"


@dataclass(frozen=True)
class Machine:
    """Best measured rates: FLOPs a second in the base's dtype by library that multiplies, bytes a second of a copy."""

    kernels: dict[str, float]
    bytes: float

    @property
    def flops(self) -> float:
        return max(self.kernels.values())


@dataclass(frozen=True)
class MeasuredBase:
    name: str
    fingerprint: dict[str, str]
    parameters: int
    layers: int
    hidden: int
    vocab: int
    kv_bytes: int
    dtype: str
    device: str
    quantization: str
    mib: float


@dataclass(frozen=True)
class MemoryRow:
    """Peak memory of a training step beyond weights, adapters and their gradients."""

    system: str
    policies: int
    pass_tokens: int
    extra_mib: float


@dataclass
class Record:
    """Everything of one run. ``engine`` holds its settings, and the systems that it does not have."""

    benchmark: str
    environment: dict[str, str]
    settings: dict[str, Any]  # the section of the schema, as the user may write it
    base: MeasuredBase
    clock: str
    tolerance: float
    machine: Machine
    engine: dict[str, str]
    cells: list[Cell]
    aa: dict[str, AaRun]
    load: list[LoadRecord]
    memory: list[MemoryRow]
    stopped: str | None
    wall_seconds: float
    cpu_seconds: float
    format: int = FORMAT

    def faults(self) -> list[str]:
        """Why ratios and rates are withheld for a fault, each reason once, and where. Other prompts are no fault: the
        base reads a policy's text.
        """
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            for ratio in cell.ratios:
                for refusal in ratio.refused:
                    if refusal.code != "OTHER_PROMPTS":
                        found.setdefault(str(refusal), []).append(f"{cell.name} {ratio.ours} over {ratio.baseline}")
        for one in self.load:
            for refusal in one.refused:
                found.setdefault(str(refusal), []).append(f"open_loop, {one.kind}, population {one.population}")
        more = {reason: f" and {len(where) - 1} more" * (len(where) > 1) for reason, where in found.items()}
        return [f"{reason} ({where[0]}{more[reason]})" for reason, where in found.items()]


def plain(record: Record) -> dict[str, Any]:
    """What is written: everything but the tokens and scores of results."""
    bare = [
        replace(cell, trials=[replace(trial, run=replace(trial.run, results=())) for trial in cell.trials])
        for cell in record.cells
    ]
    data = asdict(replace(record, cells=bare))
    for trial in (trial for cell in data["cells"] for trial in cell["trials"]):
        del trial["run"]["results"]
    return data


def record_json(record: Record) -> str:
    """JSON with one trial a line: complete, and still to be read and compared line by line."""
    data = plain(record)
    trials = [json.dumps(trial, allow_nan=False) for cell in data["cells"] for trial in cell["trials"]]
    for cell in data["cells"]:
        cell["trials"] = ["@"] * len(cell["trials"])
    parts = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).split('"@"')
    return "".join(part + line for part, line in zip(parts, [*trials, ""], strict=True)) + "\n"


def load_record(path: Path) -> Record:
    """Read a ``bench.json``, or the folder that holds one.

    Raises:
        ConfigError: it is not there, not readable, of another format, or damaged.
    """
    file = path / "bench.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: no bench.json that can be read ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f"{file} is no record of this version's alora bench; measure it again")
    try:
        return _built(Record, data)
    except (TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"{file} is damaged: {error}; measure it again") from error


def _built(kind: Any, data: Any) -> Any:
    """``data`` as ``kind``: a dataclass, a list or dict of such, or a plain value."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return typing.cast(Any, kind)(**{key: _built(hints[key], value) for key, value in data.items()})
    if origin is list:
        return [_built(inner[0], value) for value in data]
    if origin is dict:
        return {key: _built(inner[1], value) for key, value in data.items()}
    if origin is types.UnionType and types.NoneType in inner:
        return None if data is None else _built(inner[0], data)
    if kind is not Any and not isinstance(data, float | int if kind is float else kind):
        raise TypeError(f"{data!r} is no {getattr(kind, '__name__', kind)}")
    return data
