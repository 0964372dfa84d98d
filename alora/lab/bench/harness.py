"""The one measuring loop: every system once before the clock starts, then once a round, in an order drawn for every
cell and round, every sample kept; and the ratios, where none of :mod:`~alora.lab.bench.objections` comes (they judge
the A/A run too). A record can be judged again later, without base, engine or GPU.
"""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from tqdm.auto import tqdm

from alora.config.schema import BaseSettings, BenchSettings
from alora.lab.bench import objections
from alora.lab.bench.record import AaRun, LoadRecord, Machine, Record
from alora.lab.bench.reference import agreement
from alora.lab.bench.trials import AA, Agreement, Cell, Objection, Ratio, Run, Trial, paired_ratio

AA_PAIRS = 8  # whole workloads, so that the A/A ratio is not all noise where a cell is short
Timed = TypeVar("Timed")
REHEARSAL = -1  # the number of the round that is not timed
OF_VERDICTS = ("UNEQUAL_VERDICTS", "UNSTEADY_VERDICTS", "INERT_ADAPTERS")
Turn = Callable[[int], Sequence[Run]]  # a system's: from the round's number to one run per stage of the workload


class Clock:
    """Seconds, and a way to wait. On a CPU at one thread they are CPU time of this process, in which vLLM's engine core
    runs too, and waiting sets the clock forward; otherwise the wall's."""

    def __init__(self, device: torch.device, threads: int = 1) -> None:
        self.cpu, self._gpu, self._skipped = device.type == "cpu" and threads == 1, device.type == "cuda", 0.0

    def now(self) -> float:
        return self._skipped + (time.process_time() if self.cpu else time.perf_counter())

    def wait_until(self, moment: float) -> None:
        left = max(moment - self.now(), 0.0)
        if self.cpu:
            self._skipped += left
        else:
            time.sleep(left)

    def time(self, run: Callable[[], Timed]) -> tuple[Timed, float, float]:
        """What ``run()`` returns, and its seconds and wall seconds with all that it started on a GPU."""
        finish = torch.cuda.synchronize if self._gpu else lambda: None
        finish()
        wall, start = time.perf_counter(), self.now()
        returned = run()
        finish()
        return returned, self.now() - start, time.perf_counter() - wall


class TimeIsUp(Exception):
    """The run has lasted as long as it may; what is finished is reported."""


class Harness:
    """Runs turns in rounds. ``cells`` are finished, those ``underway`` are being measured; nothing new is begun after
    ``deadline`` (of ``time.perf_counter()``)."""

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self.cells: list[Cell] = []
        self.underway: list[Cell] = []
        self.finished: Callable[[], None] = lambda: None  # called when more cells are
        self.deadline = None if settings.limit_s is None else time.perf_counter() + settings.limit_s

    def measure(self, turns: Mapping[str, Turn], stages: Sequence[Cell], cells: int) -> None:
        """Every system's turn once untimed, so that no batch of its sizes is the first in a timed round; then rounds,
        more for a workload of few ``cells``, whose A/A ratio is noisier."""
        self.underway = list(stages)
        orders = draw_orders(
            list(turns), stages[-1], max(self.settings.rounds, -(-AA_PAIRS // cells)), self.settings.seed
        )
        schedule = [(REHEARSAL, list(turns)), *enumerate(orders)]
        for number, order in tqdm(schedule, desc=stages[0].name, disable=None, leave=False):  # a bar on a terminal
            ran = []
            for position, name in enumerate(order):
                self.in_time()
                gc.collect()  # outside the clock, so that no system pays for another's garbage
                runs = zip(stages, turns[name](number), strict=True)
                ran += [(cell.trials, Trial(name, number, position, run)) for cell, run in runs]
            for trials, trial in ran if number != REHEARSAL else ():  # a round counts when every system has run
                trials.append(trial)
        self.cells += stages
        self.underway = []
        self.finished()

    def in_time(self) -> None:
        """Go on, or TimeIsUp: ``bench.limit_s`` seconds have passed since the run began."""
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise TimeIsUp(f"the limit of {self.settings.limit_s:g} s was reached (bench.limit_s)")

    def keep_whole_rounds(self) -> None:
        """What is being measured is finished; two rounds at least make a cell."""
        self.cells += [cell for cell in self.underway if len({trial.round for trial in cell.trials}) >= 2]
        self.underway = []


def draw_orders(systems: Sequence[str], cell: Cell, rounds: int, seed: int) -> list[list[str]]:
    """The order of the systems in every round of a cell, drawn from the seed and the cell's name. Ours and the A/A run
    take turns at being first, for whoever runs second may find the machine warmer; a coin says who begins."""
    generator = random.Random(f"{seed} {cell.workload} {sorted(cell.at.items())}")
    aa_first, orders = generator.random() < 0.5, []
    for number in range(rounds):
        order = list(systems)
        generator.shuffle(order)
        if cell.ours and {cell.ours[0], AA} <= set(order):
            ours, aa = order.index(cell.ours[0]), order.index(AA)
            if (aa < ours) != (aa_first == (number % 2 == 0)):
                order[ours], order[aa] = order[aa], order[ours]
        orders.append(order)
    return orders


@dataclass
class Context:
    """What every benchmark gets; the machine's rates are measured once its base is there."""

    settings: BenchSettings
    base: BaseSettings
    device: torch.device
    dtype: torch.dtype
    scratch: Path
    clock: Clock
    harness: Harness
    machine: Machine = field(default_factory=lambda: Machine({}, 0.0))


class Benchmark(Protocol):
    """What a benchmark knows of its systems: why seconds may not be used, a run's least seconds, verdicts compared."""

    def faults(self, cell: Cell, system: str) -> list[Objection]: ...
    def roofline(self, cell: Cell, system: str) -> float: ...
    def agreement(self, cell: Cell, system: str) -> list[Agreement]: ...

    def ask(self) -> None:
        """Ask the references, where there are any, once all is measured."""

    def load(self) -> list[LoadRecord]:
        """What arrivals have shown."""
        return []


def evaluate(cells: Sequence[Cell], bench: Benchmark) -> tuple[list[Cell], dict[str, AaRun]]:
    """The cells with their ratios, and the A/A run of every workload."""
    workloads = dict.fromkeys(cell.workload for cell in cells)
    aa = {name: AaRun(*objections.aa_ratio([c for c in cells if c.workload == name])) for name in workloads}
    judged = []
    for cell in cells:
        if cell.ours:
            roofline = {name: bench.roofline(cell, name) for name in cell.systems}
            agreement = [one for name in cell.systems for one in bench.agreement(cell, name)]
            cell = replace(cell, roofline=roofline, agreement=agreement)
            others = [name for name in cell.systems if name not in (*cell.ours, AA)]
            pairs = [(ours, baseline) for ours in cell.ours for baseline in others]
            cell = replace(cell, ratios=[_ratio(cell, *pair, bench, aa[cell.workload].refused) for pair in pairs])
        judged.append(cell)
    return judged, aa


def _ratio(cell: Cell, ours: str, baseline: str, bench: Benchmark, aa: list[Objection]) -> Ratio:
    """How many times faster ours is than ``baseline``, or why there is no number."""
    fast, slow = cell.of(ours), cell.of(baseline)
    refused = objections.unequal_work(fast, slow, baseline)
    if not fast:
        return Ratio(ours, baseline, None, refused)
    refused += objections.missing_rounds(fast, slow, baseline)
    for name in (ours, baseline):
        seconds = cell.mean(name, lambda run: run.seconds)
        refused += [*bench.faults(cell, name), *objections.below_roofline(seconds, cell.roofline[name], name)]
    refused = list(dict.fromkeys([*refused, *aa]))
    ratio = None if refused else paired_ratio([t.each for t in slow], [t.each for t in fast])
    times = []  # more tokens computed, more seconds of the roofline; of a piece
    for value in ({name: cell.mean(name, lambda run: run.computed) for name in (ours, baseline)}, cell.roofline):
        mine, theirs = (value[name] / max(1, cell.of(name)[0].run.pieces) for name in (ours, baseline))
        times.append(round(theirs / mine, 2) if mine and theirs else None)
    return Ratio(ours, baseline, ratio, refused, *times)


def judge(record: Record) -> Record:
    """The record with its verdicts compared anew by today's bounds, from what it holds, and its ratios where no guard
    objects any more. What depends on the run itself (equal work, caches, rooflines, the A/A run) stays as it was."""
    if record.benchmark == "training":  # which compares gradients, and keeps none of them
        return record
    tolerance = objections.VERDICT_TOLERANCE[record.base.dtype in ("bfloat16", "float16")]
    cells = [replace(cell, agreement=list(map(_again, cell.agreement))) for cell in record.cells]
    cells = [replace(cell, ratios=[_ratio_again(cell, one, tolerance) for one in cell.ratios]) for cell in cells]
    load = [replace(one, agreement=list(map(_again, one.agreement))) for one in record.load]
    load = [replace(one, refused=_refused(one.refused, [] if one.reason else one.agreement, tolerance)) for one in load]
    return replace(record, tolerance=tolerance, cells=cells, load=load)


def _again(entry: Agreement) -> Agreement:
    """Compared anew where the answers were kept."""
    if not entry.answers:
        return entry
    pairs = [(one.answered, one.reference) for one in entry.answers]
    return replace(agreement(entry.system, entry.against, pairs, entry.moved), answers=entry.answers)


def _refused(before: Sequence[Objection], entries: Sequence[Agreement], tolerance: float) -> list[Objection]:
    verdicts = [one for entry in entries if entry.checked for one in objections.unequal_verdicts(entry, tolerance)]
    return list(dict.fromkeys([*verdicts, *(one for one in before if one.code not in OF_VERDICTS)]))


def _ratio_again(cell: Cell, ratio: Ratio, tolerance: float) -> Ratio:
    own = [entry for entry in cell.agreement if entry.system in (ratio.ours, ratio.baseline)]
    refused = _refused(ratio.refused, own, tolerance)
    seconds = ([trial.each for trial in cell.of(name)] for name in (ratio.baseline, ratio.ours))
    return replace(ratio, refused=refused, ratio=None if refused else paired_ratio(*seconds))
