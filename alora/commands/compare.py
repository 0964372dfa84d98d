"""``alora compare``: aLoRA, LoRA, prompt, probe, bag of words and a judge on the same rows, seeds and budget."""

from __future__ import annotations

import torch

from alora.commands.output import note
from alora.comparison.arms import run_unit
from alora.comparison.folder import ComparisonFolder
from alora.comparison.task import Workbench, read_task, units
from alora.config.environment import describe_environment
from alora.config.saved import save_recipe
from alora.config.schema import Recipe


def run(recipe: Recipe) -> int:
    """Run every unit that is not there yet."""
    from alora.base.load import load_base
    from alora.render import Renderer

    if recipe.training.threads:
        torch.set_num_threads(recipe.training.threads)
    task = read_task(recipe)
    with ComparisonFolder(recipe) as folder:
        base = load_base(recipe.base)
        bench = Workbench(task, base, Renderer(base.tokenizer, recipe.prompt, recipe.base.template_kwargs))
        if folder.claim(task.digests(base)):
            note(f"going on in {folder.path}")
        save_recipe(recipe, folder.settings, describe_environment())
        for unit in units(recipe):
            if folder.read(unit) is None:
                note(f"running {unit.name}")
                folder.write(unit, *run_unit(bench, unit, folder.home(unit)))
    return 0
