"""From new adapters to their best checkpoint."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.errors import TrainingError
from alora.prefix.packed import PackedModel
from alora.prefix.store import PrefixStore, memory_budget, open_store
from alora.text import read_json
from alora.training.examples import Example, Members, balanced, collate
from alora.training.layout import PREFIX_CACHE, last_whole_checkpoint, remove_checkpoints
from alora.training.model import SharedPrefixModel
from alora.training.processes import ALONE, Processes, current_processes, home, is_sharded
from alora.training.schedule import Schedule, make_schedule, width_of
from alora.training.standings import GradientStep, Logits, Standing, Tracker
from alora.training.trainer import SharedPrefixTrainer


class TrainingBar(ProgressCallback):
    """``transformers.ProgressCallback`` with the latest losses behind the bar; that one prints every log entry."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Open the bar, at the step that a resumed run goes on from."""
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        """Show the latest training and validation loss."""
        for key, name in (("loss", "loss"), ("eval_loss", "validation")):
            if logs and key in logs:
                self._shown[name] = float(logs[key])
        if self.training_bar is not None:
            self.training_bar.set_postfix(self._shown)


@dataclass(frozen=True)
class Fitted:
    """Each policy's best adapter and standing, and how training went."""

    adapters: tuple[AdapterWeights, ...]
    standings: tuple[Standing, ...]
    out_of_fold: tuple[Logits | None, ...]  # of each policy in folds, its training rows' answers in their order
    steps: int
    settings: TrainingSettings  # with nothing left open
    history: tuple[dict[str, float | None], ...]  # None: not finite


def fit(
    base: LoadedBase,
    adapters: Sequence[AdapterWeights],
    train: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainingSettings,
    checkpoints: Path,
    progress: bool = True,
    callbacks: Sequence[TrainerCallback] = (),
    store: PrefixStore | None = None,
) -> Fitted:
    """Train ``adapters`` together, one policy each, and return each one's best by validation loss.

    The adapters of the training rows' folds train along; a policy in folds needs no ``validation`` rows.

    ``store`` holds prefix KV of the caller, planned for these rows; with None, the training plans its own.

    A run that was cut off goes on from its last whole checkpoint in ``checkpoints`` and ends with the same bytes. Where
    several processes have met, all of them call this with the same arguments and get the same answer; the first alone
    writes, and all read ``checkpoints``.
    """
    train = balanced(train) if settings.class_weights == "balanced" else train
    members = Members.of(train, len(adapters))
    held_out = members.held_out(train, validation)
    require_rows(train, held_out)
    schedule = make_schedule(settings, train, max(adapter.spec.rank for adapter in adapters), width_of(base.model))
    # Adapters train in float32 on a half-precision base, as PEFT's autocast_adapter_dtype has it.
    dtype = torch.float64 if base.model.dtype == torch.float64 else torch.float32
    bank = Bank(base.model, [adapters[policy] for policy in members.owners], trainable=True, dtype=dtype)
    tracker = Tracker(bank, settings.early_stopping_patience, members)
    processes = current_processes()
    resume = processes.broadcast(last_whole_checkpoint(checkpoints) if processes.first else None)
    store = _store(base, [*train, *validation], settings, resume, processes) if store is None else store
    with _packed(base, bank, settings) as packed:
        trainer = SharedPrefixTrainer(
            model=SharedPrefixModel(packed, store, processes if is_sharded(base.model) else ALONE),
            args=_arguments(schedule, checkpoints, packed.device),
            train_dataset=members.train(train),
            eval_dataset=held_out,
            data_collator=collate,
            callbacks=[GradientStep(bank, tracker, processes, settings.max_grad_norm), *callbacks],
            tracker=tracker,
            max_suffix_tokens=settings.max_suffix_tokens,
        )
        trainer.remove_callback(PrinterCallback)  # prints dictionaries onto standard output, which is for results
        if progress:
            trainer.add_callback(TrainingBar())
        try:
            _to_the_end(trainer, tracker, resume, schedule.steps)
        except TrainingError:
            if processes.first:
                remove_checkpoints(checkpoints)  # it would fail again: nothing to go on from
            raise
    if progress and store is not None and (shortfall := store.shortfall()):
        tqdm.write(shortfall, file=sys.stderr)
    processes.wait()  # the first is free to remove the checkpoints once this returns
    return Fitted(
        adapters=tuple(tracker.best(policy) for policy in range(len(adapters))),
        standings=tuple(tracker.standings),
        out_of_fold=tuple(tracker.out_of_fold(policy) for policy in range(len(adapters))),
        steps=trainer.state.global_step,
        settings=schedule.settings,
        history=tuple(map(finite_entry, trainer.state.log_history)),
    )


@contextlib.contextmanager
def _packed(base: LoadedBase, bank: Bank, settings: TrainingSettings) -> Iterator[PackedModel]:
    """The base with the bank's adapters; at the end it is as it was before."""
    try:
        packed = PackedModel(base.model, bank)
        if settings.gradient_checkpointing:
            packed.checkpoint_activations()
        yield packed
    finally:
        bank.release()
        if settings.gradient_checkpointing:
            base.model.gradient_checkpointing_disable()
            # enabling hooks the embeddings, disabling leaves the hook
            base.model.disable_input_require_grads()
        base.model.eval()


def _to_the_end(trainer: SharedPrefixTrainer, tracker: Tracker, resume: Path | None, steps: int) -> None:
    """Train until every policy has stopped; TrainingError where none was left."""
    if resume is None or not trainer.restore_finished(resume, steps):
        packed = trainer.shared_prefix_model.packed
        with tensor_cores(packed.device, packed.base.dtype):
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    # The last step may lie between two evaluations.
    if tracker.active and tracker.judged != trainer.state.global_step:
        trainer.evaluate()
    tracker.drop_unmoved()
    if all(standing.dropped for standing in tracker.standings):
        reasons = dict.fromkeys(str(standing.dropped) for standing in tracker.standings)
        raise TrainingError("; ".join(reasons))


def _store(
    base: LoadedBase, rows: Sequence[Example], settings: TrainingSettings, resume: Path | None, processes: Processes
) -> PrefixStore | None:
    """A store of this training's own, with the budget that the checkpoint ``resume`` had."""
    budget = settings.prefix_cache_bytes
    if budget is None and resume is not None:
        budget = read_json(resume / PREFIX_CACHE, TrainingError, "remove the checkpoint")["bytes"]
    elif budget is None:
        budget = processes.broadcast(memory_budget(base.model.device, processes.count))
    mine = (row.prefix_ids for row in rows if home(row.prefix_ids, processes.count) == processes.rank)
    return open_store(budget, base.model, mine)


def require_rows(train: Sequence[Example], validation: Sequence[Example]) -> None:
    """Raises TrainingError when there is nothing to train on, or nothing to choose the best by."""
    if not train or not validation:
        raise TrainingError(f"{len(train)} training and {len(validation)} validation rows; both need at least one")


def finite_entry(entry: Mapping[str, float]) -> dict[str, float | None]:
    """A log entry that JSON can hold: a policy that diverged has losses that it cannot."""
    return {name: value if math.isfinite(value) else None for name, value in entry.items()}


@contextlib.contextmanager
def tensor_cores(device: torch.device, base_dtype: torch.dtype) -> Iterator[None]:
    """Let the float32 adapters of a half-precision base on a GPU multiply as TF32. The half-precision base rounds more
    than TF32 adapters do, and without tensor cores the adapters take far more time than their share of the
    arithmetic."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and base_dtype in (torch.bfloat16, torch.float16):
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _arguments(schedule: Schedule, checkpoints: Path, device: torch.device) -> TrainingArguments:
    return TrainingArguments(
        **trainer_options(schedule, checkpoints, device),
        max_grad_norm=0.0,  # GradientStep does it, policy by policy
        remove_unused_columns=False,
        label_names=["labels"],
    )


def trainer_options(schedule: Schedule, checkpoints: Path, device: torch.device) -> dict[str, Any]:
    """What any ``transformers.Trainer`` of a training is given, TRL's too."""
    settings = schedule.settings
    return {
        "output_dir": str(checkpoints),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps,
        "per_device_train_batch_size": schedule.conversations,
        "per_device_eval_batch_size": schedule.conversations,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "warmup_steps": schedule.warmup_steps,
        "lr_scheduler_type": settings.scheduler,
        "optim": "adamw_torch",
        "seed": settings.seed,
        "data_seed": settings.seed,
        "eval_strategy": "steps",
        "eval_steps": schedule.interval,
        "save_strategy": "steps",
        "save_steps": schedule.interval,
        "save_total_limit": 2,
        "logging_steps": schedule.interval,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": device.type == "cuda",
        "use_cpu": device.type == "cpu",
    }
