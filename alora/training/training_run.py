"""One call of ``alora train``: what its stages share, and the first of them, rows → adapters and ``training.json``."""

import resource
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm.auto import tqdm

from alora.adapter.folder import AdapterSpec, load_adapter, new_adapter, save_adapter
from alora.atomic import write_json
from alora.base.load import LoadedBase
from alora.config.schema import Recipe
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.row_checks import describe_positive
from alora.data.splits import Splits
from alora.errors import AloraError, BundleError, LeftOut, RunError, TrainingError
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.received import sealed
from alora.text import note
from alora.training.examples import Example, examples
from alora.training.layout import remove_checkpoints
from alora.training.loop import Fitted, fit
from alora.training.processes import Processes
from alora.training.run_folder import RunFolder
from alora.training.schedule import loss_curves, unfinished
from alora.training.standings import TrainingRecord, read_training, require_trained
from alora.training.tracking import Tracking
from alora.training.trl_engine import fit_with_trl

Result = TypeVar("Result")
_MOST_NAMED = 8  # policies, with a line each; alora check lists all


@dataclass(frozen=True)
class TrainingRun:
    """What every stage needs; ``left_out`` grows as policies fail."""

    recipe: Recipe
    folder: RunFolder
    base: LoadedBase
    policies: tuple[Policy, ...]
    splits: Splits
    conversation: Conversation | None  # scored at the end; None: the first held-out row
    left_out: LeftOut = field(default_factory=LeftOut)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.base.tokenizer, self.recipe.prompt, self.recipe.base.template_kwargs)

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of all that was read: the base, the rows, the policies."""
        facts = {f"base {name}": value for name, value in self.base.fingerprint.as_dict().items()}
        return facts | self.splits.digests(self.policies)

    @property
    def activated(self) -> bool:
        return self.recipe.adapter.kind == "alora"

    @property
    def going(self) -> list[Policy]:
        """The policies that have not failed."""
        return [policy for policy in self.policies if policy.id not in self.left_out]

    def spec(self, policy: Policy) -> AdapterSpec:
        """The adapter that the recipe asks for."""
        suffix = self.renderer.suffix(policy)
        return AdapterSpec.of(self.recipe.adapter, suffix.invocation_ids if self.activated else None)

    def seen(self, rows: Sequence[LabelledConversation], doing: str) -> Iterable[LabelledConversation]:
        """``rows``, with a bar where there are so many that going through them takes time."""
        return tqdm(rows, desc=doing, unit="row", delay=5, leave=False, disable=not self.folder.writes)

    def each(self, stage: Callable[[Policy], Result]) -> dict[str, Result]:
        """Run a stage for every policy that is left; an error costs its own policy only, until it was the last."""
        going = {policy.id: policy for policy in self.going}
        results = self.left_out.each(going, lambda name: stage(going[name]))
        self.leave_out({})
        return results

    def leave_out(self, failed: Mapping[str, AloraError]) -> None:
        """Go on without the policies that failed, as long as one is left."""
        self.left_out.update(failed)
        self.left_out.require_some(policy.id for policy in self.policies)


def read_back(file: Path, read: Callable[[Path], Result]) -> Result:
    """What an earlier call of the same run wrote to ``file``."""
    try:
        return read(file)
    except (RunError, BundleError) as error:
        raise RunError(
            f"{file} is damaged or of another version; remove it and run the same command again: only this stage is "
            "done again"
        ) from error


def train_adapters(this: TrainingRun, tracking: Tracking, processes: Processes) -> None:
    """Every policy from its own seed, its rows in the battery's batches; what training gives up is left out."""
    policies = this.going
    missing = not all(this.folder.paths(policy.id).training.exists() for policy in policies)
    if processes.broadcast(missing):
        if this.recipe.training.engine == "trl":
            if "training.max_suffix_tokens" in this.recipe.given:
                note("training.max_suffix_tokens: without effect on training.engine=trl, which packs no suffixes")
            this.each(lambda policy: _train_with_trl(this, policy, tracking))
        else:
            watch = [tracking.callback([policy.id for policy in policies])]
            fitted = train_together(this, policies, callbacks=watch)
            for index, policy in enumerate(policies):
                _keep(this, policy, fitted, index)
    remove_checkpoints(this.folder.checkpoints)  # also of an earlier call, killed while it removed them
    this.each(partial(_require_adapter, this))


def share_training(this: TrainingRun, processes: Processes) -> None:
    """The part of every process but the first: its share of the training, if there is one to do."""
    if processes.broadcast(None):
        train_together(this, this.going, progress=False)


def _require_adapter(this: TrainingRun, policy: Policy) -> None:
    paths = this.folder.paths(policy.id)
    if not paths.adapter.exists():
        raise TrainingError(read_back(paths.training, read_training).standing.dropped or "it has no adapter")
    require_trained(paths.training, policy.id, load_adapter(paths.adapter).digest)


def train_together(this: TrainingRun, policies: Sequence[Policy], **options: Any) -> Fitted:
    """All policies at once, their suffixes packed behind shared prefixes."""
    rows = _examples(this, policies)
    fresh = [new_adapter(this.spec(policy), this.base.model, this.recipe.training.seed) for policy in policies]
    settings, checkpoints = this.recipe.training, this.folder.checkpoints
    return fit(this.base, fresh, rows["train"], rows["validation"], settings, checkpoints, **options)


def _train_with_trl(this: TrainingRun, policy: Policy, tracking: Tracking) -> None:
    """One policy's standard LoRA by TRL, which trains one at a time."""
    if this.folder.paths(policy.id).training.exists():
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
        name: examples(this.seen(getattr(this.splits, name), "tokenising"), policies, this.renderer, this.activated)
        for name in ("train", "validation")
    }
    if this.folder.writes:
        names = ", ".join(policy.id for policy in policies)
        note(f"training {names}: {len(rows['train'])} conversations, {len(rows['validation'])} to validate on")
        for policy in policies[:_MOST_NAMED]:
            note(describe_positive("train", this.splits.train, policy))
        if this.recipe.prompt.truncation == "windows":
            note("training reads one prefix of a long conversation, cut from the middle; verdicts read all its windows")
    return rows


def _keep(this: TrainingRun, policy: Policy, fitted: Fitted, index: int) -> None:
    paths, standing = this.folder.paths(policy.id), fitted.standings[index]
    if standing.dropped is None:
        save_adapter(fitted.adapters[index], paths.adapter, this.base.source)
    curves, settings = loss_curves(fitted.history, index, len(fitted.standings)), asdict(fitted.settings)
    if standing.taken_back_at is not None and standing.dropped is None:
        note(
            f"{policy.id}: its training loss doubled at step {standing.taken_back_at}, so it went on from its best "
            "weights at half the learning rate; lower training.learning_rate"
        )
    if text := unfinished(curves["validation"], settings):
        note(f"{policy.id} {text}")
    adapter = None if standing.dropped is not None else fitted.adapters[index].digest
    record = TrainingRecord(
        policy=policy.id,
        adapter_digest=adapter,
        standing=standing,
        steps=fitted.steps,
        settings=settings,
        losses=curves,
        peak_bytes=_peak_memory(),
        out_of_fold=fitted.out_of_fold[index],
        history=fitted.history,
    )
    write_json(paths.training, sealed(asdict(record)))


def _peak_memory() -> int:
    """Bytes that this process has held at once: on the GPU where there is one, else in all."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
