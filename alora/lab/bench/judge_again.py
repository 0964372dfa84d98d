"""A record's verdicts judged again by today's bounds, from what it holds: no base, no engine, no GPU."""

from collections.abc import Sequence
from dataclasses import replace

from alora.lab.bench import guards
from alora.lab.bench.guards import Code
from alora.lab.bench.intervals import paired_ratio
from alora.lab.bench.record import Record
from alora.lab.bench.reference import agreement
from alora.lab.bench.trials import Agreement, Cell, Objection, Ratio

OF_VERDICTS = {Code.UNEQUAL_VERDICTS, Code.UNSTEADY_VERDICTS, Code.INERT_ADAPTERS}


def judge(record: Record) -> Record:
    """The record with its verdicts compared anew, and its ratios where no guard objects any more.

    What depends on the run itself (equal work, caches, rooflines, the A/A run) stays as it was judged then.
    """
    if record.benchmark == "training":  # which compares gradients, and keeps none of them
        return record
    tolerance = guards.VERDICT_TOLERANCE[record.base.dtype in ("bfloat16", "float16")]
    cells = [_cell(cell, tolerance) for cell in record.cells]
    load = []
    for one in record.load:
        compared = [_again(entry) for entry in one.agreement]
        refused = _refused(one.refused, [] if one.reason else compared, tolerance)
        load.append(replace(one, agreement=compared, refused=refused))
    return replace(record, tolerance=tolerance, cells=cells, load=load)


def _again(entry: Agreement) -> Agreement:
    """Compared anew where the answers were kept."""
    if not entry.answers:
        return entry
    pairs = [(one.answered, one.reference) for one in entry.answers]
    return replace(agreement(entry.system, entry.against, pairs, entry.moved), answers=entry.answers)


def _refused(before: Sequence[Objection], entries: Sequence[Agreement], tolerance: float) -> list[Objection]:
    verdicts = [one for entry in entries if entry.checked for one in guards.unequal_verdicts(entry, tolerance)]
    return list(dict.fromkeys([*verdicts, *(one for one in before if one.code not in OF_VERDICTS)]))


def _cell(cell: Cell, tolerance: float) -> Cell:
    compared = [_again(entry) for entry in cell.agreement]
    cell = replace(cell, agreement=compared)
    return replace(cell, ratios=[_ratio(cell, ratio, tolerance) for ratio in cell.ratios])


def _ratio(cell: Cell, ratio: Ratio, tolerance: float) -> Ratio:
    own = [entry for entry in cell.agreement if entry.system in (ratio.ours, ratio.baseline)]
    refused = _refused(ratio.refused, own, tolerance)
    seconds = ([trial.each for trial in cell.of(name)] for name in (ratio.baseline, ratio.ours))
    return replace(ratio, refused=refused, ratio=None if refused else paired_ratio(*seconds))
