"""A standard LoRA trained by TRL's ``SFTTrainer`` itself: the baseline that others would run, configured as it must be.

SFTTrainer's defaults (1.16) would ruin these rows: it truncates them to 1024 tokens from the end, which removes the
answer, and then silently drops rows without an answer. So each row is the renderer's own token ids followed by the
answer, the answer is the only labelled token, nothing is truncated or packed, and the trainer's prepared rows are
compared with the originals before the first step. The loss is SFTTrainer's: cross-entropy over the vocabulary.
"""

import copy
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from alora.adapter.folder import AdapterWeights, load_adapter, peft_config
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.errors import MissingDependency, TrainingError
from alora.training.examples import Example
from alora.training.layout import last_whole_checkpoint, mark_complete, remove_checkpoints
from alora.training.loop import Fitted, TrainingBar, finite_entry, require_rows, trainer_options
from alora.training.schedule import Schedule, make_schedule, width_of
from alora.training.standings import Standing

IGNORED = -100  # label of positions that a language-model loss leaves out


def fit_with_trl(
    base: LoadedBase,
    adapter: AdapterWeights,
    train: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainingSettings,
    checkpoints: Path,
    progress: bool = True,
    callbacks: Sequence[TrainerCallback] = (),
) -> Fitted:
    """Train one policy's standard LoRA and return its best by validation loss; the base is given back as it was. A run
    that was cut off goes on from its last whole checkpoint in ``checkpoints``."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TrainingError("training.engine=trl runs in one process; train over several with training.engine=alora")
    require_rows(train, validation)
    settings = make_schedule(settings, train, adapter.spec.rank, width_of(base.model)).settings
    with peft_on(base, adapter) as model:
        trainer = make_trainer(base, model, train, validation, settings, checkpoints)
        for callback in (_Completed(), _FirstGradient(), *callbacks):
            trainer.add_callback(callback)
        if progress:
            trainer.add_callback(TrainingBar())
        resume = last_whole_checkpoint(checkpoints)
        if resume is not None and _is_finished(resume):
            state = _state(resume)
            trained = AdapterWeights(adapter.spec, load_adapter(_best(resume) or resume).tensors)
        else:
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
            state, trained = trainer.state, read_back(model, adapter)
    _require_finite(state, checkpoints)
    stopped = state.global_step if state.global_step < state.max_steps else None
    return Fitted(
        adapters=(trained,),
        out_of_fold=(None,),
        standings=(Standing(best_loss=state.best_metric, best_step=state.best_global_step, stopped_at=stopped),),
        steps=state.global_step,
        settings=settings,
        history=tuple(map(finite_entry, state.log_history)),
    )


def make_trainer(
    base: LoadedBase,
    model: PeftModel,
    train: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainingSettings,
    checkpoints: Path,
    **changes: Any,
) -> Any:
    """An ``SFTTrainer`` for ``model`` whose rows are exactly the examples. ``changes`` are options of ``SFTConfig``."""
    trl = trl_package("training.engine=trl needs the package trl")
    schedule = make_schedule(settings, train, int(model.peft_config["default"].r), width_of(base.model))  # pyright: ignore
    rows = {"train": _rows(train), "validation": _rows(validation)}
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**_options(base, schedule, checkpoints) | changes),
        train_dataset=Dataset.from_list(rows["train"]),
        eval_dataset=Dataset.from_list(rows["validation"]),
        processing_class=copy.deepcopy(base.tokenizer),  # a pad token may be set on it
        callbacks=[EarlyStoppingCallback(patience)] if (patience := settings.early_stopping_patience) else [],
    )
    trainer.remove_callback(PrinterCallback)
    _require_whole_rows("training", rows["train"], trainer.train_dataset)
    _require_whole_rows("validation", rows["validation"], trainer.eval_dataset)
    return trainer


def trl_package(why: str, otherwise: str = "") -> Any:
    """TRL, which is optional; MissingDependency says ``why`` it is asked for, and what to do ``otherwise``."""
    try:
        import trl  # optional, and slow to import
    except ImportError as error:
        raise MissingDependency(f"{why}; install alora-toolkit[baselines]{otherwise}") from error
    return trl


def _require_whole_rows(name: str, rows: Sequence[dict[str, list[int]]], prepared: Any) -> None:
    """TrainingError where a trainer cut, packed, changed or dropped a row: the answer is the only label."""
    made = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in prepared]
    if made != rows:
        kept = sum(row in made for row in rows)
        raise TrainingError(
            f"SFTTrainer kept {kept} of {len(rows)} {name} rows as they were; it needs max_length=None and no packing"
        )


def _rows(examples: Sequence[Example]) -> list[dict[str, list[int]]]:
    made = []
    for example in examples:
        (target,) = example.targets
        prompt, answer = [*example.prefix_ids, *target.suffix_ids], target.label_token_ids[target.label]
        made.append({"input_ids": [*prompt, answer], "labels": [IGNORED] * len(prompt) + [answer]})
    return made


def _options(base: LoadedBase, schedule: Schedule, checkpoints: Path) -> dict[str, Any]:
    return trainer_options(schedule, checkpoints, base.model.device) | {
        "max_length": None,  # the default of 1024 cuts the answer off
        "packing": False,  # PEFT would search one activation in several rows
        "gradient_checkpointing": schedule.settings.gradient_checkpointing,
        "max_grad_norm": schedule.settings.max_grad_norm,
        "bf16": base.model.dtype == torch.bfloat16,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
        "restore_callback_states_from_checkpoint": True,
    }


@contextmanager
def peft_on(base: LoadedBase, adapter: AdapterWeights) -> Iterator[PeftModel]:
    """The base under PEFT, holding ``adapter``; afterwards the base is what it was, patched methods included."""
    # The layers share the config, so what a trainer writes into it is taken back in place.
    changing = (base.model, base.model.config, base.model.config.get_text_config(), base.model.generation_config)
    before = [(item, dict(vars(item))) for item in changing if item is not None]
    model = get_peft_model(base.model, peft_config(adapter.spec))
    assert isinstance(model, PeftModel)
    try:
        put_adapter(model, adapter)
        yield model
    finally:
        model.unload()  # PEFT replaced modules; this puts the base's own back
        base.model.gradient_checkpointing_disable()
        base.model.disable_input_require_grads()
        for item, attributes in before:
            for name in set(vars(item)) - set(attributes):
                delattr(item, name)  # TRL's forward, PEFT's record of itself
            vars(item).update(attributes)
        base.model.requires_grad_(False)
        base.model.eval()


def read_back(model: PeftModel, like: AdapterWeights) -> AdapterWeights:
    """The adapter that ``model`` holds now, in the shape of ``like``."""
    tensors = {
        name: (halves[0].detach().float().cpu().clone(), halves[1].detach().float().cpu().clone())
        for name, (_, halves) in zip(like.tensors, layers(model, like), strict=True)
    }
    return AdapterWeights(like.spec, tensors)


@torch.no_grad()
def put_adapter(model: PeftModel, adapter: AdapterWeights) -> None:
    """Copy the weights into ``model``, whose adapter has the same spec."""
    for pair, halves in layers(model, adapter):
        for half, tensor in zip(halves, pair, strict=True):
            half.copy_(tensor)


def layers(
    model: PeftModel, adapter: AdapterWeights
) -> Iterator[tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
    """``adapter``'s tensors, each next to the parameters of ``model`` for it."""
    modules = dict(model.named_modules())
    for name, pair in adapter.tensors.items():
        layer: Any = modules[f"base_model.model.{name}"]
        yield pair, (layer.lora_A["default"].weight, layer.lora_B["default"].weight)


class _Completed(TrainerCallback):
    """Marks a checkpoint that was written to its end."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called by the trainer behind a checkpoint's last file."""
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            mark_complete(folder, state.global_step)


class _FirstGradient(TrainerCallback):
    """Stops a run that does not learn: B starts at zero, and its first gradient must not be."""

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        gradients = [weight.grad for name, weight in kwargs["model"].named_parameters() if "lora_B" in name]
        if state.global_step == 0 and not any(gradient is not None and gradient.any() for gradient in gradients):
            raise TrainingError("no gradient reached the adapter; it would stay what it is. Check adapter.targets")


def _state(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def _best(checkpoint: Path) -> Path | None:
    """The best checkpoint up to this one, where the run lies now."""
    best = _state(checkpoint).best_model_checkpoint
    return None if best is None else checkpoint.with_name(Path(best).name)


def _is_finished(checkpoint: Path) -> bool:
    """Whether nothing is left to train behind a checkpoint: all steps done, or stopped early."""
    state = _state(checkpoint)
    callbacks: Any = state.stateful_callbacks or {}
    stopped = callbacks.get("TrainerControl", {}).get("args", {}).get("should_training_stop")
    return state.global_step >= state.max_steps or bool(stopped)


def _require_finite(state: TrainerState, checkpoints: Path) -> None:
    if state.best_metric is None or not math.isfinite(state.best_metric):
        remove_checkpoints(checkpoints)  # it would fail again: nothing to go on from
        raise TrainingError(f"validation loss is {state.best_metric}; lower training.learning_rate")
