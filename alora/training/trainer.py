"""A ``transformers.Trainer`` over the packed forward.

What it keeps from its parent: data order, schedules, accumulation, checkpoints, callbacks, resume. What it replaces:
the training step (one backward per pass of suffix tokens, so memory follows the pass and not the number of policies),
evaluation, clipping and the optimiser (policy by policy), and what a checkpoint holds (the bank alone, as safetensors).
"""

from __future__ import annotations

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
from alora.prefix.packed import PackedModel, Pair, passes
from alora.prefix.store import PrefixStore
from alora.training.examples import Batch
from alora.training.loss import Answers, label_losses
from alora.training.optimiser import PolicyAdamW
from alora.training.track import Tally, Tracker

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

    def __init__(self, *, tracker: Tracker, max_suffix_tokens: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = False
        self._tracker, self._limit = tracker, max_suffix_tokens
        self._unlogged = Tally(len(tracker.standings))  # training losses since the last log entry

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW policy by policy: a policy without a row in a step is not moved by it."""
        if self.optimizer is None:
            args, trained = self.args, self.model if model is None else model
            assert trained is not None
            self.optimizer = PolicyAdamW(
                [parameter for parameter in trained.parameters() if parameter.requires_grad],
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                weight_decay=args.weight_decay,
            )
        return self.optimizer

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of one batch, pass by pass; returns the batch's loss."""
        model.train()
        batch: Batch = inputs["batch"]
        total = torch.zeros((), device=self.args.device)
        for part in self._passes(batch, self._tracker.active):
            losses_n = self._losses(model, batch, part)
            diverged = self._drop_diverged(batch, part, losses_n)
            if diverged:
                part = [place for place in part if batch.pairs[place].policy not in diverged]
                if not part:
                    continue
                losses_n = self._losses(model, batch, part)
            weights_n = losses_n.new_tensor([batch.weights[place] for place in part])
            loss = (weights_n * losses_n).sum() / self.current_gradient_accumulation_steps
            self.accelerator.backward(loss)
            self._unlogged.add([batch.pairs[place].policy for place in part], losses_n.tolist())
            self._tracker.trained.update(batch.pairs[place].policy for place in part)
            total += loss.detach().to(total.dtype)
        return total

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        """Validation loss per policy; the standings and the best weights follow from it."""
        model = self.split_model.eval()
        tally = Tally(len(self._tracker.standings))
        with torch.no_grad():
            for inputs in self.get_eval_dataloader(eval_dataset):
                batch: Batch = inputs["batch"]
                for part in self._passes(batch, self._tracker.active):
                    losses = self._losses(model, batch, part).tolist()
                    tally.add([batch.pairs[place].policy for place in part], losses)
        losses = self._over_processes(tally).means()
        self._tracker.judge(losses, self.state.global_step)
        mean = sum(losses.values()) / max(1, len(losses))
        metrics = {f"{metric_key_prefix}_loss": mean}
        if len(losses) > 1:
            metrics |= {f"{metric_key_prefix}_loss_{place}": loss for place, loss in losses.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if not self._tracker.active:
            self.control.should_training_stop = True
        return metrics

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log; a training loss of several policies goes with each policy's own mean since the last entry."""
        if "loss" in logs and len(self._tracker.standings) > 1:
            means = self._over_processes(self._unlogged).means()
            logs |= {f"loss_{place}": loss for place, loss in means.items()}
        if "loss" in logs:
            self._unlogged = Tally(len(self._tracker.standings))
        super().log(logs, *args, **kwargs)

    def _over_processes(self, tally: Tally) -> Tally:
        if self.args.world_size > 1:
            sums = tally.sums.to(self.args.device)
            torch.distributed.all_reduce(sums)
            tally.sums = sums.cpu()
        return tally

    @property
    def split_model(self) -> SplitModel:
        """The model without what accelerate wraps around it."""
        model = self.accelerator.unwrap_model(self.model)
        assert isinstance(model, SplitModel)
        return model

    def _passes(self, batch: Batch, active: frozenset[int]) -> list[list[int]]:
        """Places of the active policies' pairs, cut into passes."""
        wanted = [place for place, pair in enumerate(batch.pairs) if pair.policy in active]
        return passes(wanted, lambda place: len(batch.pairs[place].suffix_ids), self._limit)

    def _losses(self, model: nn.Module, batch: Batch, part: Sequence[int]) -> torch.Tensor:
        logits_nL = model(prefixes=batch.prefixes, pairs=[batch.pairs[place] for place in part])
        labels_n = torch.tensor([batch.labels[place] for place in part], device=logits_nL.device)
        return label_losses(Answers(logits_nL, labels_n))

    def _drop_diverged(self, batch: Batch, part: Sequence[int], losses_n: torch.Tensor) -> set[int]:
        """Give up policies whose loss is not finite; TrainingError when none is left."""
        finite = torch.isfinite(losses_n.detach()).tolist()
        diverged = {batch.pairs[place].policy for place, fine in zip(part, finite, strict=True) if not fine}
        for policy in sorted(diverged):
            self._tracker.drop(policy, f"training loss is not finite at step {self.state.global_step}")
        if diverged and not self._tracker.active:
            raise TrainingError(
                f"training loss is not finite at step {self.state.global_step}; lower training.learning_rate, "
                "or take base.dtype=float32"
            )
        return diverged

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        state = self.split_model.state_dict() if state_dict is None else state_dict
        save_file({name: value.contiguous() for name, value in state.items()}, folder / _WEIGHTS)
        self._tracker.save(folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            write_json(folder / COMPLETE, {"step": self.state.global_step})

    def restore_finished(self, checkpoint: Path, total_steps: int) -> bool:
        """Take up ``checkpoint`` when nothing is left to train behind it; False, and nothing changed, when there is.

        The parent's loop would take one more step.
        """
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        self._tracker.load(checkpoint)
        if state.global_step < total_steps and self._tracker.active:
            return False
        self.split_model.load_state_dict(load_file(checkpoint / _WEIGHTS))
        self.state = state
        return True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        self.split_model.load_state_dict(load_file(folder / _WEIGHTS))
        self._tracker.load(folder)


class PolicyClip(TrainerCallback):
    """Clip each policy's gradient by its own norm, so that one policy's outlier does not shrink another's step."""

    def __init__(self, bank: Bank, limit: float) -> None:
        self._bank, self._limit = bank, limit

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer between backward and the optimiser's step."""
        self._bank.clip_gradients(self._limit)


class GradientWatch(TrainerCallback):
    """Stop a run that does not learn: after its first rows every policy must have a gradient.

    B starts at zero, so A's first gradient is zero by construction and B's is the one that must not be. It would be if
    the activation were missing, the hooks did not fire, or the base's kernels lost the gradient.
    """

    def __init__(self, bank: Bank, tracker: Tracker) -> None:
        self._bank, self._tracker = bank, tracker
        self._seen: set[int] = set()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer between backward and the optimiser's step."""
        fresh = self._tracker.trained - self._seen
        self._seen |= fresh
        self._tracker.trained.clear()
        for policy in sorted(fresh & self._tracker.active):
            dead = [name for name, (da, db) in self._bank.gradients(policy).items() if not (db.any() or da.any())]
            if dead:
                raise TrainingError(
                    f"policy {policy}: no gradient reached {len(dead)} adapted layer(s) after the first step "
                    f"({', '.join(dead[:3])}); the adapter would stay what it is. Check adapter.targets, and that the "
                    "base is not quantized by a method whose kernels drop gradients"
                )
