"""``alora bench training``: measure packed training and scoring against what a user would otherwise run."""

from __future__ import annotations

from pathlib import Path

import torch

from alora.bench.report import markdown, refusals
from alora.bench.training import run_training
from alora.commands.output import note, say, say_json, write_json, write_text
from alora.config.environment import describe_environment
from alora.config.schema import BaseSettings, Recipe
from alora.errors import BaseError


def run(recipe: Recipe) -> int:
    """Write ``bench.json`` and ``bench.md``; 1 when a ratio had to be withheld."""
    settings = recipe.bench
    device, dtype = _place(recipe.base)
    results = {"benchmark": settings.workload, "environment": describe_environment()}
    results |= run_training(settings, device, dtype)
    folder = Path(recipe.output or Path("runs") / f"bench_{settings.workload}").absolute()
    report = markdown(results)
    write_json(folder / "bench.json", results)
    write_text(folder / "bench.md", report)
    if recipe.json:
        say_json(results)
    else:
        say(report)
    note(f"written to {folder}: bench.md, and bench.json with every sample")
    withheld = refusals(results)
    if withheld:
        note(f"{len(withheld)} ratio(s) withheld; bench.md says why")
    return int(bool(withheld))


def _place(settings: BaseSettings) -> tuple[torch.device, torch.dtype]:
    """Device and dtype as ``alora train`` would choose them."""
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name.startswith("cuda") and not torch.cuda.is_available():
        raise BaseError(f"base.device={name} but torch {torch.__version__} sees no GPU; use base.device=cpu")
    device = torch.device(name)
    if settings.dtype != "auto":
        return device, getattr(torch, settings.dtype)
    return device, torch.bfloat16 if device.type == "cuda" else torch.float32
