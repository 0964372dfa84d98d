"""``alora compare``: aLoRA, LoRA, encoder, prompt, probe, words and a judge on the same rows, seeds and budget."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from alora.atomic import write_json, write_text
from alora.base.limits import require_rank, require_room
from alora.base.load import LoadedBase, load_base
from alora.bundle.run_rows import leaks
from alora.bundle.write import public_source
from alora.commands.output import say, say_json, table
from alora.config.environment import describe_environment
from alora.config.saved import save_recipe
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear
from alora.data.splits import known_rows
from alora.errors import DataError, LeftOut
from alora.lab.compare import compare_report as report
from alora.lab.compare.compare_report import ComparisonFolder
from alora.lab.compare.figures import Comparison, compare
from alora.lab.compare.methods import run_method
from alora.lab.compare.task import Scores, Task, Workbench, method_runs, read_task
from alora.llm.judge import require_settings
from alora.prefix.store import PrefixStore, memory_budget, open_store
from alora.prompt.render import Renderer
from alora.text import note
from alora.training.processes import require_launch

SETTINGS = ("adapter", "prompt", "training", "evaluation", "compare")


def run(recipe: Recipe) -> int:
    """Run every method that is not there yet, then compare all; 1 when a policy is missing somewhere."""
    require_launch()
    if recipe.training.threads:
        torch.set_num_threads(recipe.training.threads)
    if recipe.judge.url is not None:
        require_settings(recipe.judge)
        if remark := in_the_clear(recipe.judge.url):
            note(remark)
    task = read_task(recipe)
    with ComparisonFolder(recipe) as folder:
        base = load_base(recipe.base)
        renderer = Renderer(base.tokenizer, recipe.prompt, recipe.base.template_kwargs)
        task = _renderable(task, renderer)
        leaked = _leaks(task)
        for line in leaked:
            note(line)
        bench = Workbench(task, base, renderer)
        _require_room(bench)
        if folder.claim(task.digests(base)):
            note(f"going on in {folder.path}")
        save_recipe(recipe, folder.settings, describe_environment())
        bench = replace(bench, store=_store(bench))
        scores: list[Scores] = []
        left_out: dict[str, Mapping[str, str]] = {"every arm": dict(task.left_out)}
        for method_run in method_runs(recipe):
            if not folder.finished(method_run):
                note(f"running {method_run.name}")
                folder.write(method_run, *run_method(bench, method_run, folder.home(method_run)))
                if not folder.finished(method_run):
                    note(f"{method_run.name}: some rows have no answer for now; the same command asks about them again")
            found, left_out[method_run.name] = folder.read(method_run)
            scores += found
        left_out = _report(task, folder, scores, left_out, base, leaked)
    return int(any(left_out.values()))


def _store(bench: Workbench) -> PrefixStore:
    splits, budget, model = bench.task.splits, bench.task.recipe.training.prefix_cache_bytes, bench.base.model
    rows = [*splits.train, *splits.validation, *splits.test]
    prefixes = [bench.renderer.prefix(row.conversation).token_ids for row in rows]
    return open_store(memory_budget(model.device) if budget is None else budget, model, prefixes)


def _require_room(bench: Workbench) -> None:
    """Refuse what would fail in some arm: a rank or a row that the base has no room for."""
    recipe, splits, model = bench.task.recipe, bench.task.splits, bench.base.model
    for rank in recipe.compare.ranks or [recipe.adapter.rank]:
        require_rank(model, rank)
    suffixes = {policy.id: bench.renderer.suffix(policy) for policy in bench.task.policies}
    require_room(model, bench.renderer, [*splits.train, *splits.validation, *splits.test], suffixes)


def _renderable(task: Task, renderer: Renderer) -> Task:
    """The task without the policies that cannot be asked on this base: of a label that is not one token there."""
    left_out, by_id = LeftOut(), task.by_id
    left_out.each(by_id, lambda name: renderer.suffix(by_id[name]))
    return task.without(left_out)


def _leaks(task: Task) -> list[str]:
    """A warning of each policy whose test rows the methods are fitted to, or whose validation rows they learn from."""
    splits = task.splits
    known = known_rows(splits.test, [*splits.train, *splits.validation])
    taught = known_rows(splits.validation, splits.train)
    return [
        *leaks(known, splits.test, task.by_id, "figures on new rows may be far lower; compare on others"),
        *leaks(taught, splits.validation, task.by_id, "thresholds are fitted to them; validate on others"),
    ]


def _report(
    task: Task,
    folder: ComparisonFolder,
    scores: list[Scores],
    left_out: Mapping[str, Mapping[str, str]],
    base: LoadedBase,
    leaked: Sequence[str],
) -> dict[str, Mapping[str, str]]:
    """Compute, write and show the comparison; what is left out, with the policies that scores were of no use for."""
    recipe = task.recipe
    ranks, main_rank = recipe.compare.ranks, recipe.adapter.rank
    main_rank = ranks[0] if ranks and main_rank not in ranks else main_rank
    comparison = compare(scores, recipe.evaluation, main_rank, recipe.training.seed)
    left_out = dict(left_out)
    for method, reasons in comparison.left_out.items():
        left_out[method] = {**left_out.get(method, {}), **reasons}
    if not comparison.methods:
        raise DataError(
            "no arm has a score", [f"{u}: {p}: {why}" for u, all_ in left_out.items() for p, why in all_.items()]
        )
    name = public_source(base.source)[0]
    settings: dict[str, Any] = {"base": name, "base_fingerprint": base.fingerprint.as_dict()}
    settings |= {part: asdict(getattr(recipe, part)) for part in SETTINGS}
    content = report.document(comparison, scores, left_out, settings, describe_environment())
    write_json(folder.path / "compare.json", content)
    write_text(folder.path / "compare.md", report.markdown(comparison, left_out, name, leaked))
    if recipe.json:
        say_json({key: value for key, value in content.items() if key != "scores"})
    else:
        _show(comparison, left_out)
        say(f"\nwritten to {folder.path}: compare.md, and compare.json with every raw score")
    return left_out


def _show(comparison: Comparison, left_out: Mapping[str, Mapping[str, str]]) -> None:
    table(report.POLICY_HEADINGS, report.policy_rows(comparison))
    say("\nmean of the policies")
    table(report.BATTERY_HEADINGS, report.battery_rows(comparison))
    say()
    table(report.GAP_HEADINGS, report.gap_rows(comparison))
    if rows := report.left_out_rows(left_out):
        say()
        table(("left out of", "policy", "why"), rows)
