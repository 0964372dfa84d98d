"""What ``bench.md`` says of the open loop, from the plain data of ``bench.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alora.bench.report import table
from alora.bench.serving.marks import kept_up, told_rate


def loop_faults(results: Mapping[str, Any]) -> list[str]:
    """Why rates and populations are withheld, each reason once."""
    found = []
    for entry in results.get("open_loop", ()):
        found += [f"open_loop (population {entry['population']}): {reason}" for reason in entry.get("refused", ())]
    return list(dict.fromkeys(found))


def open_loop_section(entries: Sequence[Mapping[str, Any]]) -> str:
    """The section of ``bench.md``: the highest rate of every arm, and what a population beyond the slots does."""
    rates = []
    for entry in entries:
        if entry["kind"] == "rate":
            tried = "; ".join(f"{one['rate']:.2f}/s p95 {_p95(one)}{_behind(one)}" for one in entry["probes"])
            rates.append([entry["arm"], str(entry["population"]), told_rate(entry), tried])
    cliffs = [_cliff(entry) for entry in entries if entry["kind"] == "population"]
    target = entries[0]["target_ms"]
    text = (
        f"## open_loop\n\nHighest rate that holds p95 < {target:g} ms for a conversation, all verdicts back, counted "
        f"from its arrival; every rate offers {_offered(entries)} conversations, the same (0/s: one after another). It "
        "lies between the highest rate that held and the lowest that did not; `>=` or `<`: only one of the two was "
        "found. *Fell behind*: answered more slowly than they came, so that with more of them p95 would grow.\n\n"
        + table(["arm", "population", "conversations/s", "rates tried"], rates)
    )
    if cliffs:
        heads = ["arm", "population", "slots", "distinct adapters", "rate", "p50, ms", "p95, ms"]
        rounds = max((len(entry["probe"]["rounds"]) for entry in entries if entry.get("probe")), default=0)
        turns = f", in {rounds} rounds by turns: the median round [the lowest, the highest]" if rounds else ""
        text += (
            "\n\nA population that outgrows the slots, at half the rate that held (0.00: none held, so one after "
            f"another){turns}:\n\n{table(heads, cliffs)}"
        )
    return text


def _cliff(entry: Mapping[str, Any]) -> list[str]:
    row = [entry["arm"], str(entry["population"]), str(entry["slots"]), str(entry["distinct"])]
    probe = entry["probe"]
    if probe is None:
        return [*row, "-", "-", entry["reason"]]
    if entry.get("refused"):
        return [*row, f"{probe['rate']:.2f}", "-", "withheld"]
    p95 = f"{_least(probe)}{_between(probe, 'p95')}{_behind(probe)}"
    return [*row, f"{probe['rate']:.2f}", _between(probe, "p50"), p95]


def _behind(probe: Mapping[str, Any]) -> str:
    return "" if kept_up(probe) else ", fell behind"


def _offered(entries: Sequence[Mapping[str, Any]]) -> int:
    return max((len(one["ms"]) for entry in entries for one in entry.get("probes", ())), default=0)


def _p95(probe: Mapping[str, Any]) -> str:
    return f"{_least(probe)}{probe['figures']['p95']['value']:.0f} ms" if probe["figures"] else "-"


def _least(probe: Mapping[str, Any]) -> str:
    """A probe that was given up had worse to come."""
    return "" if probe["complete"] else ">= "


def _between(probe: Mapping[str, Any], name: str) -> str:
    if not probe["figures"]:
        return "-"
    found = probe["figures"][name]
    return f"{found['value']:.0f} [{found['low']:.0f}, {found['high']:.0f}]"
