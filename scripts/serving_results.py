"""Put a run of the serving benchmark into the repository, so that no figure in the documentation is typed by hand.

    python scripts/serving_results.py runs/serving_cpu --name cpu
    python scripts/serving_results.py benchmarks/results/serving_cpu.json --name cpu    # write its report again

Writes ``benchmarks/results/serving_NAME.json``, the report next to it, and the plots in ``docs/serving/``, and rewrites
what stands between the markers of ``docs/serving_benchmark.md``.
"""

import argparse
import re
import sys
from pathlib import Path

from alora.lab.bench.bench_report import brief, markdown, ratio_text, table, write_plots
from alora.lab.bench.record import Record, load_record, record_json
from alora.lab.bench.trials import Cell

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/serving_benchmark.md"
PUBLISHED = (  # tokens, adapters, milliseconds of standard LoRA and aLoRA as published
    (1000, 100, "2,072 → 144 (14x)"),
    (5000, 5, "506 → 51 (10x)"),
    (5000, 100, "aLoRA under 500, 32x"),
    (None, 1, "aLoRA 8 % slower"),
)


def results_block(record: Record, name: str, plots: list[Path]) -> str:
    """The cold bursts and the rates under load, the plots, and where the whole report is."""
    grid = [cell for cell in record.cells if cell.workload == "grid"]
    grid.sort(key=lambda cell: (cell.size("tokens"), cell.size("policies")))
    rows = [
        [
            f"{cell.size('tokens'):,}", str(cell.size("policies")), cell.mark("lora") + brief(cell.whole_ms("lora")),
            brief(cell.whole_ms("alora")), _ratio(cell), f"{ratio.tokens or 0:.1f}",
        ]
        for cell in grid if (ratio := cell.ratio("lora"))
    ]  # fmt: skip
    heads = ["tokens", "policies", "LoRA, ms", "aLoRA, ms", "times faster", "times fewer tokens"]
    parts = [table(heads, rows)] if rows else []
    rates = [[one.system, str(one.population), one.rate_text()] for one in record.load if one.question == "rate"]
    parts += [table(["system", "population", "conversations a second"], rates)] if rates else []
    source = f"../benchmarks/results/serving_{name}"
    parts.append(f"[The whole report]({source}.md), [every sample]({source}.json).")
    parts.append("\n".join(f"![{plot.stem.replace('_', ' ')}](serving/{plot.name})" for plot in plots))
    return "\n\n".join(filter(None, parts))


def published_block(record: Record) -> str:
    """The published rows, with the nearest cell of this run next to each."""
    grid = [cell for cell in record.cells if cell.workload == "grid"]
    rows = []
    for tokens, adapters, published in PUBLISHED:
        near = [cell for cell in grid if _is_near(cell, tokens, adapters)]
        cell = min(near, key=lambda cell: abs(cell.size("tokens") - (tokens or 0)), default=None)
        where = f"{tokens:,} × {adapters}" if tokens else f"any × {adapters}"
        rows.append([where, published, _nearest(cell) if cell else "no cell near it"])
    return table(["tokens × adapters", "published", "ours, nearest cell"], rows)


def _is_near(cell: Cell, tokens: int | None, adapters: int) -> bool:
    """Within a factor of two in both; one adapter is one adapter."""
    counts = cell.size("policies") / adapters
    lengths = cell.size("tokens") / tokens if tokens else 1.0
    return (counts == 1 if adapters == 1 else 0.5 <= counts <= 2) and 0.5 <= lengths <= 2


def _ratio(cell: Cell) -> str:
    """The ratio, or the codes of the guards that withhold it: the report has their words."""
    ratio = cell.ratio("lora")
    if ratio is None or ratio.ratio is None:
        codes = sorted({one.code for one in ratio.faults}) if ratio else []
        return " ".join(["withheld", *(f"`{code}`" for code in codes)])
    return ratio_text(cell, ratio)


def _nearest(cell: Cell) -> str:
    lora, alora = (cell.whole_ms(name).value for name in ("lora", "alora"))
    where = f"{cell.size('tokens'):,} × {cell.size('policies')}"
    return f"{where}: {cell.mark('lora')}{lora:,.0f} → {alora:,.0f} ({_ratio(cell)})"


def replaced(page: str, marker: str, text: str) -> str:
    """``page`` with ``text`` between ``<!-- MARKER -->`` and ``<!-- end MARKER -->``."""
    pattern = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- end {marker} -->)", re.DOTALL)
    if not pattern.search(page):
        sys.exit(f"{PAGE.relative_to(ROOT)} has no marker <!-- {marker} -->")
    return pattern.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the output folder of a run, or its bench.json")
    parser.add_argument("--name", default="cpu")
    given = parser.parse_args()
    record, images = load_record(given.run), ROOT / "docs/serving"
    target = ROOT / f"benchmarks/results/serving_{given.name}.json"
    target.write_text(record_json(record), encoding="utf-8")
    target.with_suffix(".md").write_text(markdown(record), encoding="utf-8")
    images.mkdir(exist_ok=True)
    plots = [plot.rename(images / f"{given.name}_{plot.name}") for plot in write_plots(record, images)]
    page = PAGE.read_text(encoding="utf-8")
    page = replaced(page, f"results {given.name}", results_block(record, given.name, plots))
    if f"<!-- published {given.name} -->" in page:
        page = replaced(page, f"published {given.name}", published_block(record))
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}, its report, docs/serving/ and {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
