"""Put a run of the serving benchmark into the documentation, so that no figure there is typed by hand.

    make bench
    python scripts/serving_results.py runs/serving_cpu --name cpu
    python scripts/serving_results.py runs/serving_cpu_attention --name cpu_attention
    python scripts/serving_results.py runs/serving_cpu_open_loop --name cpu_open_loop

Copies ``bench.json`` to ``benchmarks/results/serving_NAME.json`` and the plots to ``docs/serving/``, and rewrites what
stands between the markers of ``docs/serving_benchmark.md``.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from alora.bench.record import Record, load_record
from alora.bench.trials import Cell

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/serving_benchmark.md"
SHOWN = ("latency", "speed_up", "open_loop")
PUBLISHED = (  # tokens, adapters, milliseconds of standard LoRA and aLoRA as published
    (1000, 100, "2,072 → 144 (14x)"),
    (5000, 5, "506 → 51 (10x)"),
    (5000, 100, "aLoRA under 500, 32x"),
    (None, 1, "aLoRA 8 % slower"),
)


def results_block(folder: Path, name: str) -> str:
    """The run's own report, a level deeper, with its plots."""
    report = (folder / "bench.md").read_text(encoding="utf-8")
    body = re.sub(r"^# .*\n", "", report, count=1).strip()
    body = re.sub(r"^## ", "### ", body, flags=re.MULTILINE)
    plots = [plot for plot in SHOWN if (folder / f"{plot}.png").is_file()]
    images = "\n".join(f"![{plot.replace('_', ' ')}](serving/{name}_{plot}.png)" for plot in plots)
    source = f"[`benchmarks/results/serving_{name}.json`](../benchmarks/results/serving_{name}.json)"
    return f"Every sample is in {source}.\n\n{body}\n\n{images}"


def published_block(record: Record) -> str:
    """The published rows, with the nearest cell of this run next to each."""
    grid = [cell for cell in record.cells if cell.workload == "grid"]
    lines = ["| tokens × adapters | published | ours, nearest cell |", "| --- | --- | --- |"]
    for tokens, adapters, told in PUBLISHED:
        near = [cell for cell in grid if _is_near(cell, tokens, adapters)]
        cell = min(near, key=lambda cell: abs(cell.size("tokens") - (tokens or 0)), default=None)
        where = f"{tokens:,} × {adapters}" if tokens else f"any × {adapters}"
        lines.append(f"| {where} | {told} | {_told(cell) if cell else 'no cell near it'} |")
    return "\n".join(lines)


def _is_near(cell: Cell, tokens: int | None, adapters: int) -> bool:
    """Within a factor of two in both; one adapter is one adapter."""
    counts = cell.size("policies") / adapters
    lengths = cell.size("tokens") / tokens if tokens else 1.0
    return (counts == 1 if adapters == 1 else 0.5 <= counts <= 2) and 0.5 <= lengths <= 2


def _told(cell: Cell) -> str:
    found, part = cell.ratio("lora"), cell.mark("lora")
    ratio = "withheld" if found is None or found.ratio is None else f"{part}{found.ratio.value:.2f}x"
    lora, alora = (cell.whole_ms(name).value for name in ("lora", "alora"))
    return f"{cell.size('tokens'):,} × {cell.size('policies')}: {part}{lora:,.0f} → {alora:,.0f} ({ratio})"


def replaced(page: str, marker: str, text: str) -> str:
    """``page`` with ``text`` between ``<!-- MARKER -->`` and ``<!-- end MARKER -->``."""
    pattern = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- end {marker} -->)", re.DOTALL)
    if not pattern.search(page):
        sys.exit(f"{PAGE.relative_to(ROOT)} has no marker <!-- {marker} -->")
    return pattern.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the output folder of a run")
    parser.add_argument("--name", default="cpu")
    given = parser.parse_args()
    record = load_record(given.folder)
    target = ROOT / f"benchmarks/results/serving_{given.name}.json"
    shutil.copyfile(given.folder / "bench.json", target)
    images = ROOT / "docs/serving"
    images.mkdir(exist_ok=True)
    for plot in SHOWN:
        if (given.folder / f"{plot}.png").is_file():
            shutil.copyfile(given.folder / f"{plot}.png", images / f"{given.name}_{plot}.png")
    page = PAGE.read_text(encoding="utf-8")
    page = replaced(page, f"results {given.name}", results_block(given.folder, given.name))
    if f"<!-- published {given.name} -->" in page:
        page = replaced(page, f"published {given.name}", published_block(record))
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}, docs/serving/ and {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
