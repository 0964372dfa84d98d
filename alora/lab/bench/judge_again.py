"""A record's verdicts judged again by today's bounds, from what it holds: no base, no engine, no GPU."""

from collections.abc import Sequence
from dataclasses import replace

from alora.lab.bench import guards
from alora.lab.bench.intervals import paired_ratio
from alora.lab.bench.record import Record
from alora.lab.bench.reference import agreement
from alora.lab.bench.trials import Agreement, Cell, Objection, Ratio

OF_VERDICTS = ("UNEQUAL_VERDICTS", "UNSTEADY_VERDICTS", "INERT_ADAPTERS")


def judge(record: Record) -> Record:
    """The record with its verdicts compared anew, and its ratios where no guard objects any more. What depends on the
    run itself (equal work, caches, rooflines, the A/A run) stays as it was judged then."""
    if record.benchmark == "training":  # which compares gradients, and keeps none of them
        return record
    tolerance = guards.VERDICT_TOLERANCE[record.base.dtype in ("bfloat16", "float16")]
    cells = [replace(cell, agreement=list(map(_again, cell.agreement))) for cell in record.cells]
    cells = [replace(cell, ratios=[_ratio(cell, one, tolerance) for one in cell.ratios]) for cell in cells]
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
    verdicts = [one for entry in entries if entry.checked for one in guards.unequal_verdicts(entry, tolerance)]
    return list(dict.fromkeys([*verdicts, *(one for one in before if one.code not in OF_VERDICTS)]))


def _ratio(cell: Cell, ratio: Ratio, tolerance: float) -> Ratio:
    own = [entry for entry in cell.agreement if entry.system in (ratio.ours, ratio.baseline)]
    refused = _refused(ratio.refused, own, tolerance)
    seconds = ([trial.each for trial in cell.of(name)] for name in (ratio.baseline, ratio.ours))
    return replace(ratio, refused=refused, ratio=None if refused else paired_ratio(*seconds))
