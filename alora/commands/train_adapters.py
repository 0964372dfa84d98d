"""The training stage of ``alora train``: rows → adapters and ``training.json``, for every policy that has none yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from alora.adapter.folder import new_adapter, save_adapter
from alora.commands.output import note, write_json
from alora.commands.run_pages import peak_memory
from alora.commands.training_run import TrainingRun, read_back
from alora.errors import TrainingError
from alora.policy import Policy
from alora.tracking import Tracking
from alora.training import Example, Fitted, examples, fit
from alora.training.processes import Processes
from alora.training.run_folder import remove_checkpoints
from alora.training.schedule import loss_curves, still_improving
from alora.training.track import read_standing
from alora.training.trl_engine import fit_with_trl


def train_adapters(this: TrainingRun, tracking: Tracking, processes: Processes) -> None:
    """Every policy from its own seed, its rows in the battery's batches; what training gives up is left out."""
    policies = this.going
    missing = not all(this.folder.places(policy.id).training.exists() for policy in policies)
    if processes.broadcast(missing):
        if this.recipe.training.engine == "trl":
            this.each(lambda _, policy: _train_with_trl(this, policy, tracking))
        else:
            watch = [tracking.callback([policy.id for policy in policies])]
            fitted = train_together(this, policies, callbacks=watch)
            for index, policy in enumerate(policies):
                _keep(this, policy, fitted, index)
        remove_checkpoints(this.folder.checkpoints)
    this.each(_require_adapter)


def _require_adapter(this: TrainingRun, policy: Policy) -> None:
    places = this.folder.places(policy.id)
    if not places.adapter.exists():
        raise TrainingError(read_back(places.training, read_standing).dropped or "it has no adapter")


def train_together(this: TrainingRun, policies: Sequence[Policy], **options: Any) -> Fitted:
    """All policies at once, their suffixes packed behind shared prefixes."""
    rows = _examples(this, policies)
    fresh = [new_adapter(this.spec(policy), this.base.model, this.recipe.training.seed) for policy in policies]
    settings, checkpoints = this.recipe.training, this.folder.checkpoints
    store = this.store
    return fit(this.base, fresh, rows["train"], rows["validation"], settings, checkpoints, store=store, **options)


def _train_with_trl(this: TrainingRun, policy: Policy, tracking: Tracking) -> None:
    """One policy's standard LoRA by TRL, which trains one at a time."""
    if this.folder.places(policy.id).training.exists():
        return
    recipe = this.recipe
    rows = _examples(this, [policy])
    fresh = new_adapter(this.spec(policy), this.base.model, recipe.training.seed)
    watch = [tracking.callback([policy.id], f"{policy.id}/" if len(this.policies) > 1 else "")]
    checkpoints = this.folder.checkpoints / policy.id
    fitted = fit_with_trl(
        this.base, fresh, rows["train"], rows["validation"], recipe.training, checkpoints, callbacks=watch
    )
    _keep(this, policy, fitted, 0)


def _examples(this: TrainingRun, policies: Sequence[Policy]) -> dict[str, list[Example]]:
    rows = {
        name: examples(getattr(this.splits, name), policies, this.renderer, this.activated)
        for name in ("train", "validation")
    }
    if this.folder.writes:
        names = ", ".join(policy.id for policy in policies)
        note(f"training {names}: {len(rows['train'])} conversations, {len(rows['validation'])} to validate on")
        if this.recipe.prompt.truncation == "windows":
            note("training reads one prefix of a long conversation, cut from the middle; verdicts read all its windows")
    return rows


def _keep(this: TrainingRun, policy: Policy, fitted: Fitted, index: int) -> None:
    places, standing = this.folder.places(policy.id), fitted.standings[index]
    if standing.dropped is None:
        save_adapter(fitted.adapters[index], places.adapter, this.base.source)
    if last := still_improving(fitted.history, index, len(fitted.standings)):
        key = "max_steps" if fitted.settings.max_steps > 0 else "epochs"
        note(
            f"{policy.id} was still improving when training ended (validation loss {last[0]:.3f}, then "
            f"{last[1]:.3f}); raise training.{key}, which was {getattr(fitted.settings, key):g}"
        )
    record = {"standing": asdict(standing), "steps": fitted.steps, "settings": asdict(fitted.settings)}
    record |= {"losses": loss_curves(fitted.history, index, len(fitted.standings)), "peak_bytes": peak_memory()}
    write_json(places.training, record | {"history": list(fitted.history)})
