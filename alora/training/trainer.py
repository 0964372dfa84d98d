"""A ``transformers.Trainer`` over the packed forward.

What it keeps from its parent: data order, schedules, accumulation, checkpoints, callbacks, resume. What it replaces:
the training step (one backward per pass of suffix tokens, so memory follows the pass and not the number of policies),
evaluation, clipping and the optimiser (policy by policy), and what a checkpoint holds (the bank alone, as safetensors).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState

from alora.adapter.folder import save_tensors
from alora.atomic import write_json
from alora.prefix.passes import passes
from alora.training.examples import Batch, HeldOutAnswers
from alora.training.layout import PREFIX_CACHE, mark_complete
from alora.training.loss import TEMPERATURES, LabelledLogits, label_losses, tempered_losses
from alora.training.model import PolicyAdamW, SharedPrefixModel
from alora.training.processes import current_processes, share_out
from alora.training.standings import Tally, Tracker

_WEIGHTS = "model.safetensors"


class SharedPrefixTrainer(Trainer):
    """Train a :class:`SharedPrefixModel` on :func:`~alora.training.examples.collate` batches."""

    def __init__(self, *, tracker: Tracker, max_suffix_tokens: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Losses are weighted by rows here, so Trainer need not count label tokens for the model.
        self.model_accepts_loss_kwargs = False
        self._tracker, self._limit = tracker, max_suffix_tokens
        self._processes = current_processes()
        self._unlogged = Tally(tracker.members.owners)  # training losses since the last log entry

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
                rates=lambda: self._tracker.rates,
            )
        return self.optimizer

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of this process's share of one batch, pass by pass; returns the share's loss."""
        model.train()
        batch: Batch = inputs["batch"]
        total = torch.zeros((), device=self.args.device)
        for part in self._passes(batch):
            losses_n = label_losses(self._answers(batch, part))
            diverged = self._drop_diverged(batch, part, losses_n)
            if diverged:  # its NaN would spread through the shared backward: run the pass again without it
                part = [index for index in part if batch.pairs[index].policy not in diverged]
                # Where the base is in parts, the others wait for this process in every forward.
                if not part and self.shared_prefix_model.together.count == 1:
                    continue
                losses_n = label_losses(self._answers(batch, part))
            weights_n = losses_n.new_tensor([batch.weights[index] for index in part])
            loss = (weights_n * losses_n).sum() / self.current_gradient_accumulation_steps
            self.accelerator.backward(loss)  # one per pass: its activations are free before the next
            self._unlogged.add([batch.pairs[index].policy for index in part], losses_n.tolist())
            self._tracker.trained.update(batch.pairs[index].policy for index in part)
            total += loss.detach().to(total.dtype)
        self.shared_prefix_model.forget()
        return total * self._processes.count  # the trainer logs the mean over processes

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        """Validation loss per policy, at its best temperature; the standings and the best weights follow from it."""
        self.shared_prefix_model.eval()
        owners, held_out = self._tracker.members.owners, HeldOutAnswers(self._tracker.members, self._processes)
        tally = Tally(owners, columns=len(TEMPERATURES))
        with torch.no_grad():
            for inputs in self.get_eval_dataloader(eval_dataset):
                batch: Batch = inputs["batch"]
                held_out.open(batch)
                for part in self._passes(batch):
                    answers = self._answers(batch, part)
                    tally.add([batch.pairs[index].policy for index in part], tempered_losses(answers).tolist())
                    held_out.add(part, answers.logits_nL)
        losses = self._over_processes(tally).means()
        self._tracker.judge(losses, self.state.global_step, held_out.by_policy(self.args.device))
        mean = sum(losses.values()) / max(1, len(losses))
        metrics = {f"{metric_key_prefix}_loss": mean}
        if len(losses) > 1:
            metrics |= {f"{metric_key_prefix}_loss_{policy}": loss for policy, loss in losses.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if not self._tracker.active:
            self.control.should_training_stop = True
        return metrics

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log; a training loss of several policies goes with each policy's own mean since the last entry."""
        if "loss" in logs:
            tally, self._unlogged = self._over_processes(self._unlogged), Tally(self._tracker.members.owners)
            if len(self._tracker.standings) > 1:
                logs |= {f"loss_{policy}": loss for policy, loss in tally.means().items()}
            for policy in self._tracker.astray(tally, self.state.global_step):
                # The trainer hands out accelerate's wrapper around the optimiser.
                getattr(self.optimizer, "optimizer", self.optimizer).forget(self._tracker.take_back(policy))
        super().log(logs, *args, **kwargs)

    def _over_processes(self, tally: Tally) -> Tally:
        sums = tally.sums.to(self.args.device)  # nccl reduces on GPUs only
        self._processes.add([sums])
        tally.sums = sums.cpu()
        return tally

    @property
    def shared_prefix_model(self) -> SharedPrefixModel:
        """The model; nothing is wrapped around it."""
        assert isinstance(self.model, SharedPrefixModel)
        return self.model

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Keep DataParallel and DistributedDataParallel off: a model that is wrapped already is left alone."""
        return model if isinstance(model, _Wrapped) else _Wrapped(model)

    def get_train_dataloader(self) -> DataLoader:
        """Whole batches, on every process."""
        return _unshared(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Whole batches, on every process."""
        return _unshared(super().get_eval_dataloader(eval_dataset))

    def _passes(self, batch: Batch) -> list[list[int]]:
        """Indices of the active policies' pairs in this process's share, cut into passes. Processes that hold parts of
        the base get equally many, the last ones empty."""
        self.shared_prefix_model.forget()
        shares = self._shares(batch)
        cut = [passes(share, lambda index: len(batch.pairs[index].suffix_ids), self._limit) for share in shares]
        mine = cut[self._processes.rank]
        if self.shared_prefix_model.together.count > 1:
            mine = mine + [[]] * (max(map(len, cut)) - len(mine))
        return mine

    def _shares(self, batch: Batch) -> list[list[int]]:
        """Per process, the indices of its pairs."""
        active = self._tracker.active
        wanted = [index for index, pair in enumerate(batch.pairs) if pair.policy in active]
        if self._processes.count == 1:
            return [wanted]
        tokens = [0] * len(batch.prefixes)
        for index in wanted:
            tokens[batch.pairs[index].prefix] += len(batch.pairs[index].suffix_ids)
        owners = share_out(batch.prefixes, tokens, self._processes.count, self.shared_prefix_model.prefix_budget > 0)
        ranks = range(self._processes.count)
        return [[index for index in wanted if owners[batch.pairs[index].prefix] == rank] for rank in ranks]

    def _answers(self, batch: Batch, part: Sequence[int]) -> LabelledLogits:
        if part:
            logits_nL = self.shared_prefix_model(prefixes=batch.prefixes, pairs=[batch.pairs[index] for index in part])
        else:
            # No work, but FSDP gathers the layers in every forward of every process.
            logits_nL = self.shared_prefix_model.run_dummy(min(self._tracker.active, default=0)).view(0, 1)
        labels_n = torch.tensor([batch.labels[index] for index in part], device=logits_nL.device, dtype=torch.long)
        return LabelledLogits(logits_nL, labels_n, _label_weights(batch, part, logits_nL))

    def _drop_diverged(self, batch: Batch, part: Sequence[int], losses_n: torch.Tensor) -> set[int]:
        """Give up policies whose loss is not finite; where processes run in step, on any of them."""
        finite = torch.isfinite(losses_n.detach()).tolist()
        diverged = {batch.pairs[index].policy for index, fine in zip(part, finite, strict=True) if not fine}
        flags = [policy in diverged for policy in range(len(self._tracker.members.owners))]
        agreed = self.shared_prefix_model.together.any(flags, losses_n.device)
        diverged = {policy for policy, flag in enumerate(agreed) if flag}
        for policy in sorted(diverged):
            self._tracker.drop_diverged(policy, self.state.global_step)
        return diverged

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        state = self.shared_prefix_model.state_dict() if state_dict is None else state_dict
        save_tensors({name: value.contiguous() for name, value in state.items()}, folder / _WEIGHTS)
        self._tracker.save(folder)
        write_json(folder / PREFIX_CACHE, {"bytes": self.shared_prefix_model.prefix_budget})

    def _save_rng_state(self, output_dir: str) -> None:
        """By the first process alone: nothing in training draws from it but the data order, which has its own seed."""
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            mark_complete(folder, self.state.global_step)

    def restore_finished(self, checkpoint: Path, total_steps: int) -> bool:
        """Take up ``checkpoint`` when nothing is left to train after it; else False, with the model as it was. The
        parent's loop would take one more step."""
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        self._tracker.load(checkpoint)
        if state.global_step < total_steps and self._tracker.active:
            return False
        self.shared_prefix_model.load_state_dict(load_file(checkpoint / _WEIGHTS))
        self.state = state
        return True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        self.shared_prefix_model.load_state_dict(load_file(folder / _WEIGHTS))
        self._tracker.load(folder)


def _label_weights(batch: Batch, part: Sequence[int], logits_nL: torch.Tensor) -> torch.Tensor | None:
    if not batch.label_weights or not part:
        return None
    weights_nL = torch.ones_like(logits_nL)
    for row, index in enumerate(part):
        weights_nL[row, : len(batch.label_weights[index])] = logits_nL.new_tensor(batch.label_weights[index])
    return weights_nL


class _Wrapped(nn.Module):
    """The model as it is: what :meth:`SharedPrefixTrainer._wrap_model` returns instead of a wrapper."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model


def _unshared(loader: DataLoader) -> DataLoader:
    """Undo accelerate's sharing out of batches, as transformers itself does for samplers that know their process."""
    sampler = loader.batch_sampler
    if isinstance(sampler, BatchSamplerShard):
        sampler.num_processes, sampler.process_index, sampler.even_batches = 1, 0, False
    return loader
