"""``alora bench``: serving (aLoRA against standard LoRA on one engine), training, and compare (of two runs)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from alora.commands.output import note, say, say_json, write_json, write_text
from alora.config.environment import describe_environment
from alora.config.paths import expanded
from alora.config.schema import Recipe
from alora.errors import BaseError

_ROOM = 2**20  # bytes that must fit where the results go; those of a long run take about so many


def run(recipe: Recipe) -> int:
    """Measure, or compare; 1 when a ratio had to be withheld or verdicts disagree."""
    return {"training": _training, "serving": _serving, "compare": _compare}[recipe.bench.workload](recipe)


def _training(recipe: Recipe) -> int:
    """Write ``bench.json`` and ``bench.md``; 1 when a ratio had to be withheld."""
    from alora.bench.report import markdown, refusals
    from alora.bench.training import run_training

    device, dtype = _place(recipe)
    folder = _folder(recipe)
    results = {"benchmark": "training", "environment": describe_environment()}
    results |= run_training(recipe.bench, device, dtype, quantized=recipe.base.quantization == "nf4")
    report = markdown(results)
    _show(recipe, results, report)
    write_json(folder / "bench.json", results)
    write_text(folder / "bench.md", report)
    note(f"written to {folder}: bench.md, and bench.json with every sample")
    return _withheld(refusals(results))


def _serving(recipe: Recipe) -> int:
    """Write ``bench.json``, ``bench.md``, plots and one HTML page; 1 when a ratio was withheld for a fault."""
    from alora.bench.serving.page import html_page
    from alora.bench.serving.plots import write_plots
    from alora.bench.serving.report import faults, json_lines, markdown
    from alora.bench.serving.run import run_serving

    device, dtype = _place(recipe)
    folder = _folder(recipe)
    results: dict[str, Any] = {"benchmark": "serving", "environment": describe_environment()}
    results |= run_serving(recipe.bench, recipe.base, device, dtype)
    report = markdown(results)
    _show(recipe, results, report)
    write_text(folder / "bench.json", json_lines(results))
    write_text(folder / "bench.md", report)
    plots = write_plots(results, folder)
    write_text(folder / "bench.html", html_page(results, report, plots))
    if results["engine"]["name"] == "scorer":
        note(
            "without vLLM: the in-process scorer against PEFT's LoRA; pip install 'alora-toolkit[vllm]' for the server"
        )
    if not plots:
        note("no plots: matplotlib is not installed; pip install 'alora-toolkit[plots]'")
    note(f"written to {folder}: bench.html, bench.md, {len(plots)} plots, and bench.json with every sample")
    if not results["complete"]:
        note(f"{results['stopped']}: the report holds what was finished before")
    return _withheld(faults(results)) or int(not results["complete"])


def _compare(recipe: Recipe) -> int:
    """Print two runs side by side; 1 when ours became slower beyond the noise."""
    from alora.bench.serving.compare import compare_runs, load_run

    one, other = (load_run(expanded(path).absolute()) for path in recipe.bench.runs)
    found = compare_runs(one, other)
    if recipe.json:
        say_json(found.as_dict())
    else:
        say(found.text())
    return int(found.slower)


def _folder(recipe: Recipe) -> Path:
    """Where the results go; a place that cannot be written to is told before minutes are spent on them."""
    folder = Path(recipe.output or Path("runs") / f"bench_{recipe.bench.workload}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_ROOM))
    return folder


def _show(recipe: Recipe, results: dict[str, Any], report: str) -> None:
    """Print it, before it is written: a disk that has become full does not take the figures with it."""
    if recipe.json:
        say_json(results)
    else:
        say(report)


def _withheld(reasons: list[str]) -> int:
    if reasons:
        note(f"{len(reasons)} ratio(s) withheld; bench.md says why")
    return int(bool(reasons))


def _place(recipe: Recipe) -> tuple[torch.device, torch.dtype]:
    """Device and dtype as ``alora train`` would choose them."""
    settings, name = recipe.base, recipe.base.device
    if name == "auto":
        if recipe.bench.needs_gpu and not torch.cuda.is_available():
            raise BaseError(
                f"this benchmark needs a GPU (bench.needs_gpu), and torch {torch.__version__} sees none; take "
                "bench=cpu, or base.device=cpu for the same work on the CPU, which may take hours"
            )
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name.startswith("cuda") and not torch.cuda.is_available():
        raise BaseError(f"base.device={name} but torch {torch.__version__} sees no GPU; use base.device=cpu")
    device = torch.device(name)
    if settings.dtype != "auto":
        return device, getattr(torch, settings.dtype)
    return device, torch.bfloat16 if device.type == "cuda" else torch.float32
