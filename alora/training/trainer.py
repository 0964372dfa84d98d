"""A ``transformers.Trainer`` over the packed forward.

What the trainer keeps from its parent: data order, schedules, accumulation, evaluation, checkpoints, early stopping,
callbacks, resume. What it replaces: the training step (one backward per pass of suffix tokens, so memory follows the
pass and not the number of policies), and what a checkpoint holds (the bank alone, as safetensors).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from alora.adapter.bank import Bank
from alora.atomic import write_json
from alora.errors import TrainingError
from alora.prefix.packed import PackedModel, Pair
from alora.prefix.scorer import passes
from alora.prefix.store import PrefixStore
from alora.training.examples import Batch
from alora.training.loss import Answers, label_loss, pair_weights

COMPLETE = "complete.json"  # written last: a checkpoint without it was cut off
_WEIGHTS = "model.safetensors"


class SplitModel(nn.Module):
    """What the trainer wraps: both stages of the split in one ``forward``."""

    def __init__(self, packed: PackedModel, store: PrefixStore | None) -> None:
        super().__init__()
        self.packed, self._store = packed, store

    def forward(self, prefixes: Sequence[tuple[int, ...]], pairs: Sequence[Pair]) -> torch.Tensor:
        """Label logits ``[n, L]`` of ``pairs``, whose prefixes are run (or taken from the store) first."""
        used = sorted({pair.prefix for pair in pairs})
        kv = {place: self._prefix(prefixes[place]) for place in used}
        return self.packed.label_logits([kv.get(place) for place in range(len(prefixes))], pairs)

    def _prefix(self, token_ids: tuple[int, ...]):
        if self._store is None:
            return self.packed.prefix_kv(token_ids)
        return self._store.get(token_ids, self.packed.prefix_kv)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The bank's own: the base is not ours to save."""
        return self.packed.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Inverse of :meth:`state_dict`."""
        return self.packed.load_state_dict(state_dict, strict=strict, assign=assign)


class SplitTrainer(Trainer):
    """Train a :class:`SplitModel` on :func:`~alora.training.examples.collate` batches."""

    def __init__(self, *, max_suffix_tokens: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = False
        self._limit = max_suffix_tokens

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of one batch, pass by pass; returns the batch's loss."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        for loss in self._pass_losses(model, inputs["batch"]):
            loss = loss / self.current_gradient_accumulation_steps
            if not math.isfinite(loss.item()):
                raise TrainingError(
                    f"loss is {loss.item()} at step {self.state.global_step}; lower training.learning_rate, "
                    "or take base.dtype=float32"
                )
            self.accelerator.backward(loss)
            total += loss.detach().to(total.dtype)
        return total

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The batch's loss as one tensor (evaluation; training goes pass by pass)."""
        loss = torch.stack(list(self._pass_losses(model, inputs["batch"]))).sum()
        return (loss, {}) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[torch.Tensor, None, None]:
        """Validation loss of one batch; metrics are computed elsewhere, from the saved adapter."""
        with torch.no_grad():
            return self.compute_loss(model, inputs).detach(), None, None

    def _pass_losses(self, model: nn.Module, batch: Batch):
        device = self.args.device
        weights = pair_weights([pair.policy for pair in batch.pairs])
        done = 0
        for part in passes(batch.pairs, self._limit):
            logits_nL = model(prefixes=batch.prefixes, pairs=part)
            span = slice(done, done + len(part))
            labels_n = torch.tensor(batch.labels[span], device=device)
            weights_n = torch.tensor(weights[span], device=device, dtype=logits_nL.dtype)
            yield label_loss(Answers(logits_nL, labels_n, weights_n))
            done += len(part)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        state = self.model.state_dict() if state_dict is None else state_dict
        save_file({name: value.contiguous() for name, value in state.items()}, folder / _WEIGHTS)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            write_json(folder / COMPLETE, {"step": self.state.global_step})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._load_bank(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        self._load_bank(Path(str(self.state.best_model_checkpoint)))

    def _load_bank(self, folder: Path) -> None:
        self.accelerator.unwrap_model(self.model).load_state_dict(load_file(folder / _WEIGHTS))


class GradientWatch(TrainerCallback):
    """Stop a run that does not learn: after the first backward every policy must have a gradient.

    B starts at zero, so A's first gradient is zero by construction and B's is the one that must not be. It would be if
    the activation were missing, the hooks did not fire, or the base's kernels lost the gradient.
    """

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._seen = False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer between backward and the optimiser's step."""
        if self._seen:
            return
        self._seen = True
        for policy in range(len(self._bank.specs)):
            dead = [name for name, (da, db) in self._bank.gradients(policy).items() if not (db.any() or da.any())]
            if dead:
                raise TrainingError(
                    f"policy {policy}: no gradient reached {len(dead)} adapted layer(s) after the first step "
                    f"({', '.join(dead[:3])}); the adapter would stay what it is. Check adapter.targets, and that the "
                    "base is not quantized by a method whose kernels drop gradients"
                )
