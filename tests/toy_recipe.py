"""A toy base on disk and labelled rows beside it: what the command line needs to run for real in seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer

QUICK = (
    "training.batch_size=4",
    "training.max_steps=12",
    "training.evaluations_per_epoch=4",
    "training.threads=1",
    "identity.dtypes=[float32]",
    "identity.conversations=1",
    "evaluation.bootstrap=20",
    "export.golden_rows=2",
    "prompt.max_prefix_tokens=400",  # the toy base takes 512
)


def toy_base_folder(folder: Path, head_dim: int = 8, seed: int = 0) -> Path:
    """A random Qwen3-shaped base with its tokenizer."""
    tokenizer = toy_tokenizer("qwen3")
    toy_model("qwen3", seed=seed, vocab=len(tokenizer), head_dim=head_dim).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def toy_rows(file: Path, count: int, seed: int = 0, policy: str = "toy") -> Path:
    """``count`` rows whose label their last word tells."""
    lines = []
    for number in range(count):
        bad = number % 2 == 0
        text = f"message {seed} {number} says {'red' if bad else 'blue'}"
        row = {
            "id": f"{seed}-{number}",
            "policy": policy,
            "messages": [{"role": "user", "content": text}],
            "label": "violation" if bad else "ok",
        }
        lines.append(json.dumps(row))
    file.write_text("\n".join(lines) + "\n")
    return file


def toy_overrides(folder: Path, run: Path, head_dim: int = 8) -> list[str]:
    """Overrides of ``alora train`` for rows and base below ``folder``; both are made."""
    base = toy_base_folder(folder / "base", head_dim)
    train = toy_rows(folder / "train.jsonl", 32)
    test = toy_rows(folder / "test.jsonl", 12, seed=1)
    policy = folder / "policy.yaml"
    policy.write_text("id: toy\ntitle: No red\nrule: Nobody says red.\n")
    return [
        f"base.source={base}",
        f"policy.file={policy}",
        f"data.train={train}",
        f"data.validation={test}",
        f"data.test={test}",
        f"run_dir={run}",
        "name=toy",
        *QUICK,
    ]


def start_alora(*arguments: str, cache: Path) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ALORA_CACHE": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-m", "alora", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run_alora(*arguments: str, cache: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    process = start_alora(*arguments, cache=cache)
    output, errors = process.communicate(timeout=900)
    return process.returncode, output, errors
