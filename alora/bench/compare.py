"""``alora bench compare A B``: two runs side by side, and which differences exceed the noise.

Two runs share no rounds, and between them the machine drifts for all systems alike. So a system is judged next to the
controls, systems that no change of ours should touch: what a control did between the runs, any system may have done.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from scipy import stats

from alora.bench.intervals import Measured, ratio_of_medians
from alora.bench.record import Record
from alora.bench.report import brief, table
from alora.bench.trials import AA, Cell
from alora.errors import ConfigError
from alora.evaluation.paired import holm

FEWEST = 3  # rounds; below, nothing is known of the noise
ALPHA = 0.05  # chance of even one false alarm in a whole comparison
CONTROLS = ("base", "reader", "packed", "peft", "trainer", "trl")  # no change of ours touches them
OURS = ("alora", "packed", "guard")
FASTER, SLOWER, NO, CONTROL, NO_CONTROL = "faster", "slower", "no", "control", "no control"


@dataclass(frozen=True)
class Change:
    """One system in one cell: the first run's median over the second's. Above 1: the second is faster.

    ``chance`` is that of a difference as large beyond the controls' drift, corrected for the number of rows.
    """

    cell: str
    system: str
    first_ms: float
    second_ms: float
    ratio: Measured
    verdict: str
    chance: float | None = None


@dataclass(frozen=True)
class RunComparison:
    """All systems that both runs have. ``drift``: between which ratios the controls of a workload moved; ``rates``: of
    the open loop, in words; ``remarks``: how else the runs differ.
    """

    changes: list[Change]
    drift: dict[str, tuple[float, float]]
    rates: list[tuple[str, str, str]]
    remarks: list[str]

    @property
    def slower(self) -> bool:
        return any(one.verdict == SLOWER and one.system.startswith(OURS) for one in self.changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"slower": self.slower}

    def text(self) -> str:
        parts = []
        if self.changes:
            rows = [
                (c.cell, c.system, f"{c.first_ms:.1f}", f"{c.second_ms:.1f}", brief(c.ratio, 3), c.verdict)
                for c in self.changes
            ]
            heads = ["cell", "system", "first, ms", "second, ms", "second is faster by", "beyond the noise"]
            bands = [f"{name} {low:.3f} to {high:.3f}" for name, (low, high) in self.drift.items()]
            parts += [table(heads, rows), f"Controls moved by: {'; '.join(bands) or 'none in both'}."]
        if self.rates:
            heads = ["open loop", "first, conversations/s", "second, conversations/s"]
            parts += [table(heads, self.rates), "One search each, so no noise is known of these rates."]
        return "\n\n".join([*parts, *(f"- {one}" for one in self.remarks)]) + "\n"


def compare_records(first: Record, second: Record) -> RunComparison:
    """Every system of every cell that both runs have.

    Raises:
        ConfigError: the figures are of different work; or the runs share no cell, or have too few rounds to tell noise.
    """
    unlike = _differences(_work(first), _work(second))
    if unlike:
        raise ConfigError("the two runs measured different work:\n" + "\n".join(f"  {line}" for line in unlike))
    theirs = {cell.name: cell for cell in second.cells}
    pairs = [(cell, theirs[cell.name]) for cell in first.cells if cell.name in theirs]
    mine, others = _rates(first), _rates(second)
    rates = [(name, text, others[name]) for name, text in mine.items() if name in others]
    if not pairs and not rates:
        raise ConfigError("the two runs have no cell and no rate of the open loop in common")
    fewest = min((len({t.round for t in cell.trials}) for pair in pairs for cell in pair), default=FEWEST)
    if fewest < FEWEST:
        raise ConfigError(f"a run of {fewest} round(s) cannot tell noise; take bench.rounds={FEWEST} or more for both")
    drift = {}
    for workload in dict.fromkeys(cell.workload for cell, _ in pairs):
        moved = [move for cell, other in pairs if cell.workload == workload for move in _control_moves(cell, other)]
        drift |= {workload: (min(moved), max(moved))} if moved else {}
    changes = [
        _change(cell, other, name, drift.get(cell.workload))
        for cell, other in pairs for name in cell.systems if name in other.systems and name != AA
    ]  # fmt: skip
    return RunComparison(_judged(changes), drift, rates, _remarks(first, second))


def _rates(run: Record) -> dict[str, str]:
    searched = [one for one in run.load if one.question == "rate"]
    return {f"{one.system}, population {one.population}": one.rate_text() for one in searched}


def _work(run: Record) -> dict[str, str]:
    own = {key: value for key, value in run.settings.items() if key not in ("rounds", "limit_s", "memory")}
    return own | {"base": str(run.base.fingerprint), "dtype": run.base.dtype, "clock": run.clock}


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    keys = sorted({*one, *other} - {"command"})
    return [f"{key}: {one.get(key)!r} and {other.get(key)!r}" for key in keys if one.get(key) != other.get(key)]


def _remarks(first: Record, second: Record) -> list[str]:
    remarks = _differences(*(run.environment | {"device": run.base.device} for run in (first, second)))
    for name, run in (("first", first), ("second", second)):
        remarks += [f"the {name} run stopped before its end: {run.stopped}"] if run.stopped else []
        remarks += [f"the {name} run withheld figures: {run.faults()[0]}"] if run.faults() else []
    return remarks


def _logs(cell: Cell, system: str) -> list[float]:
    return [math.log(trial.each) for trial in cell.of(system)]


def _moved(cell: Cell, other: Cell, system: str) -> float:
    return fmean(_logs(cell, system)) - fmean(_logs(other, system))


def _is_control(cell: Cell, name: str) -> bool:
    """Where the base runs alone, all are; where there is neither base nor scorer next to ours, LoRA by PEFT is."""
    names = CONTROLS if "packed" not in cell.ours else (*CONTROLS, "lora")
    return not cell.ours or (name in names and name not in cell.ours)


def _control_moves(cell: Cell, other: Cell) -> list[float]:
    """By what the controls moved, widened by the A/A run's own noise."""
    both, noise = set(cell.systems) & set(other.systems), 0.0
    if cell.ours and {AA, cell.ours[0]} <= both:
        noise = abs(_moved(cell, other, AA) - _moved(cell, other, cell.ours[0]))
    moves = [_moved(cell, other, name) for name in both - {AA} if _is_control(cell, name)]
    return [math.exp(move + side * noise) for move in moves for side in (-1, 1)]


def _change(cell: Cell, other: Cell, name: str, band: tuple[float, float] | None) -> Change:
    first, second = ([1000 * trial.run.seconds for trial in one.of(name)] for one in (cell, other))
    change = Change(cell.name, name, median(first), median(second), ratio_of_medians(first, second), NO)
    if band is None or _is_control(cell, name):
        return replace(change, verdict=CONTROL if _is_control(cell, name) else NO_CONTROL)
    moved = _moved(cell, other, name)
    nearest = min(max(moved, math.log(band[0])), math.log(band[1]))  # the drift that explains most of it
    if nearest == moved:
        return replace(change, chance=1.0)
    drifted = [value - nearest for value in _logs(cell, name)]
    test: Any = stats.ttest_ind(drifted, _logs(other, name), equal_var=False)
    return replace(change, verdict=SLOWER if moved < nearest else FASTER, chance=float(test.pvalue))


def _judged(changes: list[Change]) -> list[Change]:
    """Verdicts after correcting for the number of rows."""
    chances = iter(holm([one.chance for one in changes if one.chance is not None]))
    corrected = [one if one.chance is None else replace(one, chance=next(chances)) for one in changes]
    return [replace(one, verdict=NO) if one.chance is not None and one.chance > ALPHA else one for one in corrected]
