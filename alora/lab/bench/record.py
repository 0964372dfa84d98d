"""``bench.json``: a whole run as dataclasses, written by :func:`record_json` and read by :func:`load_record`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from alora.errors import ConfigError
from alora.lab.bench.trials import Agreement, Cell, Measured, Objection
from alora.received import read_record
from alora.text import leaves

FORMAT = 4  # 1: the dictionaries of alora 0.1
UNFINISHED = "it was killed, or is still running"  # why a record stopped that is written while its run goes on
LINE = '"@"'  # stands for one trial or answer until it gets a line of its own


@dataclass(frozen=True)
class AaRun:
    ratio: Measured | None
    refused: list[Objection]


@dataclass(frozen=True)
class OfferedRate:
    """One offered rate, in conversations a second (0: one after another), and the milliseconds of its conversations.
    ``sustained``: answered about as fast as they came."""

    rate: float
    sustained: bool
    seconds: float
    ms: list[float]

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.ms, percent))

    def meets(self, target_ms: float) -> bool:
        return self.sustained and bool(self.ms) and self.percentile(95) < target_ms


@dataclass(frozen=True)
class LoadRecord:
    """A system under arrivals from a population of policies. ``question``: its highest ``rate``, or one rate for some
    rounds on a ``population`` that may outgrow the slots; ``reason``: why that was not run."""

    question: str
    system: str
    population: int
    target_ms: float
    slots: int
    distinct: int
    reason: str | None = None
    rates: list[OfferedRate] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)
    refused: list[Objection] = field(default_factory=list)

    def bounds(self) -> tuple[float | None, float | None]:
        """The highest rate that met the target and the lowest that did not; None where there is no such."""
        loaded = [one for one in self.rates if one.rate > 0]
        met = [one.rate for one in loaded if one.meets(self.target_ms)]
        failed = [one.rate for one in loaded if not one.meets(self.target_ms)]
        return max(met, default=None), min(failed, default=None)

    def rate_text(self) -> str:
        """The highest rate in words: between two offered rates, or a bound where no edge was found."""
        met, failed = self.bounds()
        if self.refused:
            return f"withheld: {self.refused[0].text}"
        if met is None and failed is None:
            alone = any(one.meets(self.target_ms) for one in self.rates)
            return "stopped before any was offered" if alone else "none, not even one after another"
        if met is None:
            return f"< {failed:.2f}"
        return f">= {met:.2f}" if failed is None else f"{met:.2f} to {failed:.2f}"


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
    dtype: str
    device: str
    quantization: str
    mib: float


@dataclass(frozen=True)
class Record:
    """Everything of one run. ``settings``: of ``bench``, by key; ``engine``: vLLM's options, and what it lacks."""

    benchmark: str
    environment: dict[str, str]
    settings: dict[str, str]
    base: MeasuredBase
    clock: str
    tolerance: float
    machine: Machine
    engine: dict[str, str]
    cells: list[Cell]
    aa: dict[str, AaRun]
    load: list[LoadRecord]
    stopped: str | None
    wall_seconds: float
    cpu_seconds: float
    format: int = FORMAT

    def faults(self) -> list[str]:
        """Why ratios and rates are withheld, each reason once, and where."""
        cells_of: dict[str, list[str]] = {}
        for cell in self.cells:
            for ratio in cell.ratios:
                for fault in ratio.faults:
                    cells_of.setdefault(str(fault), []).append(f"{cell.name} {ratio.ours} over {ratio.baseline}")
        for one in self.load:
            for refusal in one.refused:
                cells_of.setdefault(str(refusal), []).append(f"open_loop, {one.question}, population {one.population}")
        more = {reason: f" and {len(where) - 1} more" * (len(where) > 1) for reason, where in cells_of.items()}
        return [f"{reason} ({where[0]}{more[reason]})" for reason, where in cells_of.items()]


def settings_by_key(settings: Mapping[str, Any]) -> dict[str, str]:
    """A section of the schema as text by dotted key: what was asked for, to be read and compared."""
    return {key: ", ".join(map(str, it)) if isinstance(it, list) else str(it) for key, it in leaves(settings)}


def plain(record: Record) -> dict[str, Any]:
    """What is written: everything but the tokens and scores of results."""
    data = asdict(record)
    for trial in (trial for cell in data["cells"] for trial in cell["trials"]):
        del trial["run"]["results"]
    return data


def record_json(record: Record) -> str:
    """JSON with one trial or sampled answer a line: complete, and still to be read and compared line by line."""
    data, lines = plain(record), list[str]()
    for part in (*data["cells"], *data["load"]):  # in the order in which they are written
        for owner, name in (*((one, "answers") for one in part["agreement"]), (part, "trials")):
            lines += [json.dumps(one, allow_nan=False) for one in owner.get(name, ())]
            owner |= {name: [json.loads(LINE)] * len(owner[name])} if name in owner else {}
    parts = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).split(LINE)
    return "".join(part + line for part, line in zip(parts, [*lines, ""], strict=True)) + "\n"


def load_record(path: Path) -> Record:
    file = path / "bench.json" if path.is_dir() else path
    return read_record(Record, file, ConfigError, "give another bench.json, or measure again", format=FORMAT)
