"""What a GPU is asked first: six cells in order, each at most eight minutes, each skipped once its record is there.

    python -m scripts.gpu [--out runs/gpu] [--shape qwen3_4b] [--only truth burst]

- ``truth``: rounded rotary frequencies alone explain the verdicts of ``benchmarks/results/serving_gpu.json``; no vLLM.
- ``burst``: vLLM's verdicts behind a prefix hit of the same step, next to the right reference and the rounded one.
- ``acceptance``: ``scripts/gpu_acceptance.py``, CUDA graphs and prefix caching on short prompts.
- ``grid``: ``alora bench serving bench=gpu``, the headline.
- ``score``: the packed scorer: until it is done, until all is launched, and how many launches that were.
- ``train``: ``alora bench training``: packed steps next to PEFT's in batches.

A cell writes into OUT/CELL.partial as it goes; the folder is OUT/CELL once the cell is complete. What was measured is
printed next to what is expected: of the old record, or estimated from counts of launches (~). ``--shape mini`` runs all
of it anywhere, and its figures mean nothing; it is what runs without a GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from alora.lab.bench.record import UNFINISHED, load_record

CELLS = ("truth", "burst", "acceptance", "grid", "score", "train")
OWN = ("truth", "burst", "score")  # functions of gpu_cells.py
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CELL_SECONDS = 480
FILES = {"acceptance": "acceptance.json", "grid": "bench.json", "train": "bench.json"}  # rows.json of the others


@dataclass(frozen=True)
class Sizes:
    """Of all cells; ``grid``, ``train`` and ``acceptance`` are arguments of their commands."""

    lengths: tuple[int, ...]
    policies: tuple[int, ...]
    grid: list[str]
    train: list[str]
    acceptance: list[str]


FULL = Sizes(
    (1000, 2000, 5000), (1, 20, 100), ["bench=gpu"],
    ["bench.shape=qwen3_4b", "bench.prefixes=[500]", "bench.policies=[1,8,100]", "bench.limit_s=400"], [],
)  # fmt: skip
MINI = Sizes(
    (96, 160), (1, 4), ["bench=quick", "bench.serving.engine=scorer", "bench.serving.workloads=[grid]",
     "bench.prefixes=[96]", "bench.policies=[4]"],
    ["bench=quick", "bench.shape=toy", "bench.prefixes=[48]", "bench.policies=[4]", "bench.own_rows=1",
     "bench.baselines=[peft,peft_lora_batch]"], ["--graphs", "eager", "--caches", "on"],
)  # fmt: skip

# Low and high. truth: gaps of the old record, policy 0 of the base and the largest of the others.
TRUTH = {("base", 1000): 0.036, ("base", 2000): 0.344, ("alora", 1000): 0.252, ("alora", 2000): 0.352}
GRID = {  # milliseconds of LoRA and aLoRA by tokens and policies
    (1000, 1): ((38, 38), (40, 60)), (2000, 1): ((72, 72), (75, 110)), (5000, 1): ((185, 185), (190, 260)),
    (1000, 20): ((753, 753), (85, 85)), (1000, 100): ((3587, 3587), (253, 253)),
    (2000, 20): ((1438, 1438), (122, 122)), (2000, 100): ((7079, 7079), (297, 297)),
    (5000, 20): ((3700, 3700), (260, 310)), (5000, 100): ((18500, 18500), (430, 520)),
}  # fmt: skip
MEASURED_BEFORE = {(tokens, policies) for tokens in (1000, 2000) for policies in (20, 100)}
TRAIN = {  # milliseconds a pair behind a prefix of 500 tokens; ours with one conversation a step, in the old record
    "packed P=1": (385, 385), "packed P=8": (60, 60), "packed P=100": (9.3, 9.3), "peft": (602, 602),
    "peft_batch": (75, 94), "peft_lora": (240, 310), "peft_lora_batch": (33, 50),
}  # fmt: skip


def command_of(cell: str, out: Path, shape: str) -> list[str]:
    sizes, bench = sizes_of(shape), [sys.executable, "-m", "alora", "bench"]
    place = f"output={out}"
    if cell == "acceptance":
        return [sys.executable, "-m", "scripts.gpu_acceptance", "--out", str(out / FILES[cell]), *sizes.acceptance]
    if cell in FILES:
        verb, more = ("serving", sizes.grid) if cell == "grid" else ("training", sizes.train)
        return [*bench, verb, *more, f"base.device={DEVICE}", place]
    return [sys.executable, "-m", "scripts.gpu", "--cell", cell, "--shape", shape, "--out", str(out)]


def sizes_of(shape: str) -> Sizes:
    return MINI if shape == "mini" else FULL


def run_cell(cell: str, out: Path, shape: str) -> bool:
    """Whether the cell is complete: its folder then has its own name."""
    folder, partial = out / cell, out / f"{cell}.partial"
    if folder.exists():
        print(f"{cell}: its record is there", flush=True)
        return True
    partial.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(command_of(cell, partial, shape), start_new_session=True)
    try:
        code = process.wait(CELL_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    finally:  # an engine's own processes, too
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not complete(cell, partial, code):
        print(f"{cell}: exit code {code}; what it wrote is in {partial}", flush=True)
        return False
    partial.rename(folder)
    return True


def complete(cell: str, folder: Path, code: int | None) -> bool:
    """An exit code of 1 is a finding (a ratio withheld, a cell of the acceptance failed) where the record is whole."""
    file = folder / FILES.get(cell, "rows.json")
    if not file.exists():
        return False
    if cell == "acceptance":
        return json.loads(file.read_text())["complete"]
    return load_record(file).stopped != UNFINISHED if cell in FILES else code == 0


def compared(cell: str, folder: Path) -> Iterator[tuple[str, float, str]]:
    """What was measured, and what was expected, by name."""
    file = folder / FILES.get(cell, "rows.json")
    if cell in ("grid", "train"):
        for one in load_record(file).cells:
            for name in one.systems:
                found = one.each_ms(name) if one.by_piece else one.whole_ms(name)
                yield f"{one.name} {name}, ms", found.value, expected_ms(one.at, name)
        return
    content = json.loads(file.read_text())
    if cell == "acceptance":
        for one in content["cells"]:
            yield f"{one['graphs']}, cache {one['cache']}: passed", float(one.get("passed", 0)), "1 where available"
        return
    for row in content:
        if row["what"] == "rounded from right":
            value = row["gaps"][0] if row["system"] == "base" else max(row["gaps"])
            known = TRUTH.get((row["system"], row["tokens"]))
            yield f"{row['system']}, {row['tokens']} tokens", value, f"{known} ± 0.03" if known else "< 0.03"
        elif row["what"] == "verdicts":
            wanted = "< 0.05" if row["reference"] == "float32" else "0.2 to 0.5 (~)"
            yield f"{row['system']} from the {row['reference']} reference", row["worst"], wanted
        elif row["what"] == "packed":
            yield f"{row['tokens']} × {row['policies']}, ms", row["ms"], "60 to 170 (~)"


def expected_ms(at: dict[str, Any], system: str) -> str:
    key = (at.get("tokens", 0), at.get("policies", 0))
    if key in GRID and system in ("lora", "alora"):
        low, high = GRID[key][system == "alora"]
        return f"{low:g} to {high:g}" + " (~)" * (key not in MEASURED_BEFORE)
    if system not in TRAIN or at.get("prefix") != 500:
        return "-"
    low, high = TRAIN[system]
    return f"{low:g} to {high:g}" + " (~)" * (low < high)


def report(out: Path, cells: Sequence[str]) -> None:
    for cell in cells:
        for name, value, wanted in compared(cell, out / cell) if (out / cell).exists() else ():
            print(f"{cell:10}  {name:50}  measured {value:10.4g}   expected {wanted}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--shape", choices=("qwen3_4b", "mini"), default="qwen3_4b" if DEVICE == "cuda" else "mini")
    parser.add_argument("--only", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--cell", choices=OWN, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        from scripts import gpu_cells  # which imports what takes seconds

        sizes, keep = sizes_of(given.shape), gpu_cells.keeper(given.out / "rows.json")
        getattr(gpu_cells, given.cell)(given.shape, sizes.lengths, sizes.policies, keep)
        return 0
    done = [run_cell(cell, given.out, given.shape) for cell in CELLS if cell in given.only]
    report(given.out, given.only)
    return int(not all(done))


if __name__ == "__main__":
    sys.exit(main())
