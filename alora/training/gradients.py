"""What happens to gradients between backward and the optimiser's step: shares added, checked, clipped."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from alora.adapter.bank import Bank
from alora.training.processes import Processes
from alora.training.track import Tracker


class GradientExchange(TrainerCallback):
    """Add the processes' gradients and standings, so that all take the same step."""

    def __init__(self, bank: Bank, tracker: Tracker, processes: Processes) -> None:
        self._bank, self._tracker, self._processes = bank, tracker, processes

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._processes.count > 1:
            self._agree(state.global_step, args.device)
            for parameter in self._bank.parameters():
                if parameter.grad is None:  # no row here in this step, but all_reduce needs every process
                    parameter.grad = torch.zeros_like(parameter)
            # A sum, not a mean: losses are weighted by the whole batch's counts.
            self._processes.add(grad for p in self._bank.parameters() if (grad := p.grad) is not None)

    def _agree(self, step: int, device: torch.device) -> None:
        """A policy that had a row, or diverged, on one process did so on all."""
        adapters, policies = range(len(self._tracker.members.owners)), range(len(self._tracker.standings))
        flags = [adapter in self._tracker.trained for adapter in adapters]
        flags += [self._tracker.standings[policy].dropped is not None for policy in policies]
        flags = self._processes.any(flags, device)
        self._tracker.trained.update(adapter for adapter in adapters if flags[adapter])
        for policy in policies:
            if flags[len(adapters) + policy] and self._tracker.standings[policy].dropped is None:
                self._tracker.drop_diverged(policy, step)


class PolicyClip(TrainerCallback):
    """Clip each policy's gradient by its own norm, so that one policy's outlier does not shrink another's step."""

    def __init__(self, bank: Bank, limit: float) -> None:
        self._bank, self._limit = bank, limit

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._bank.clip_gradients(self._limit)


class GradientWatch(TrainerCallback):
    """Give up a policy that does not learn: after its first rows it must have a gradient. Stop when none is left.

    There is none where the activation is missing, the hooks do not fire, or the base's kernels lose the gradient.
    """

    def __init__(self, bank: Bank, tracker: Tracker) -> None:
        self._bank, self._tracker = bank, tracker
        self._seen: set[int] = set()

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        fresh = self._tracker.trained - self._seen
        self._seen |= fresh
        self._tracker.trained.clear()  # of this step; accumulation fills it again
        for policy in sorted(fresh & self._tracker.active):
            # B starts at zero, so the first gradient of A is zero, and that of B must not be.
            dead = [name for name, (da, db) in self._bank.gradients(policy).items() if not (db.any() or da.any())]
            if dead:
                self._tracker.drop(policy, _no_gradient(dead))
        if not self._tracker.active:
            control.should_training_stop = True


def _no_gradient(layers: Sequence[str]) -> str:
    return (
        f"no gradient reached {len(layers)} adapted layer(s) after the first step ({', '.join(layers[:3])}); the "
        "adapter would stay what it is. Check adapter.targets, and that the base is not quantized by a method whose "
        "kernels drop gradients"
    )
