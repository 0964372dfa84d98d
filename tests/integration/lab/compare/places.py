"""Rows of two opposite policies on a toy base, for comparisons and batteries that run for real in seconds."""

import json
import random
from pathlib import Path

from tests.toy_recipe import QUICK, toy_base_folder

POLICIES = (
    "policies:\n"
    "- {id: red, title: No red, rule: Nobody says red.}\n"
    "- {id: blue, title: No blue, rule: Nobody says blue.}\n"
)


def write_rows(file: Path, count: int, seed: int, shuffled: bool = False) -> Path:
    """``count`` rows that say red or blue; their labels tell which, or, ``shuffled``, nothing."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        red = number % 2 == 0
        text = f"message {seed} {number} says {'red' if red else 'blue'}"
        told = draw.random() < 0.5 if shuffled else red
        labels = {"red": "violation" if told else "ok", "blue": "ok" if told else "violation"}
        row = {"id": f"{seed}-{number}", "messages": [{"role": "user", "content": text}], "labels": labels}
        lines.append(json.dumps(row))
    file.write_text("\n".join(lines) + "\n")
    return file


def make_place(folder: Path) -> Path:
    """``base/``, ``policies.yaml`` and three files of rows."""
    toy_base_folder(folder / "base")
    (folder / "policies.yaml").write_text(POLICIES)
    for seed, (name, count) in enumerate({"train": 40, "validation": 24, "test": 24}.items()):
        write_rows(folder / f"{name}.jsonl", count, seed)
    return folder


def overrides(place: Path, run: Path, *more: str) -> list[str]:
    """What ``alora train`` and ``alora compare`` need to run on ``place``."""
    return [
        f"base.source={place / 'base'}",
        f"policy.file={place / 'policies.yaml'}",
        "policies=[red,blue]",
        *(f"data.{name}={place / name}.jsonl" for name in ("train", "validation", "test")),
        f"run_dir={run}",
        *QUICK,
        "evaluation.bootstrap=60",
        *more,
    ]
