"""Best checkpoint, early stopping and divergence, policy by policy.

The policies of a bank are trained together but judged apart: each keeps the weights of its own best validation loss,
stops when that has not improved for a while, and is dropped when its loss is no longer finite. A stopped or dropped
policy costs nothing from then on and never touches the others. A policy in folds is judged by its folds' answers, which
are kept with the weights: they are what its operating point is fitted to. ``training.json`` says how one policy was
trained, for whatever uses its adapter.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights, save_tensors
from alora.atomic import write_json
from alora.errors import RunError
from alora.received import CHANGED, DAMAGED, decode, refused, unsealed
from alora.text import read_json
from alora.training.examples import Members
from alora.training.processes import ALONE, Processes

_REMEDY = "lower training.learning_rate, look at its rows, or take base.dtype=float32"
Logits = list[list[float]]  # [n, L], in the order of the rows
_SMOOTHED_OVER = 50  # rows
_PUT_BACK = "put the run's own file back, name a bundle of the run alone, or remove the file and train again"
_WEIGHTS, _STATE = "best.safetensors", "policies.json"


@dataclass
class Standing:
    """How one policy stands: losses are validation losses, steps are optimiser steps."""

    best_loss: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    stopped_at: int | None = None
    smoothed_loss: float | None = None  # of training
    lowest_loss: float | None = None  # of the smoothed ones
    taken_back_at: int | None = None  # since that step it trains at half the rate
    dropped: str | None = None  # why its training was given up

    @property
    def active(self) -> bool:
        return self.stopped_at is None and self.dropped is None


class Tracker:
    """The standings of a bank's policies, their adapters' best weights and their folds' answers."""

    def __init__(self, bank: Bank, patience: int, members: Members | None = None) -> None:
        self._bank, self._patience = bank, patience
        self.members = Members((0,) * len(bank.specs)) if members is None else members
        self.standings = [Standing() for _ in self.members.folds]
        self.judged: int | None = None  # the step of the last evaluation
        self.trained: set[int] = set()  # adapters that had a row since the last optimiser step
        self._best: dict[int, AdapterWeights] = {}
        self._answers: dict[int, Logits] = {}

    @property
    def active(self) -> frozenset[int]:
        """The adapters whose policy still trains."""
        owners = enumerate(self.members.owners)
        return frozenset(adapter for adapter, policy in owners if self.standings[policy].active)

    def judge(self, losses: Mapping[int, float], step: int, answers: Mapping[int, Logits] | None = None) -> None:
        """Take in one evaluation: the validation loss per policy, and what the folds answered, row by row."""
        self.judged = step
        for policy in self.active & losses.keys():
            standing, loss = self.standings[policy], losses[policy]
            # A schedule's first step may have rate 0: however well the base does, it is not an adapter to export.
            if math.isfinite(loss) and self._bank.inert(policy):
                continue
            if not math.isfinite(loss):
                self.drop(policy, f"validation loss is {loss} at step {step}; {_REMEDY}")
            elif standing.best_loss is None or loss < standing.best_loss:
                standing.best_loss, standing.best_step, standing.evaluations_since_best = loss, step, 0
                self._best |= {adapter: self._bank.adapter(adapter) for adapter in self.members.adapters(policy)}
                self._answers |= {policy: answers[policy]} if answers and policy in answers else {}
            else:
                standing.evaluations_since_best += 1
                if self._patience and standing.evaluations_since_best >= self._patience:
                    standing.stopped_at = step

    def astray(self, tally: "Tally", step: int) -> list[int]:
        """Take in the training losses since the last call; the policies whose smoothed loss has doubled. A loss below
        that of guessing between two labels counts as that. The second time a policy is dropped."""
        found, losses, rows_P = [], tally.means(), tally.sums[:, -1].tolist()
        for policy in sorted({self.members.owners[adapter] for adapter in self.active} & losses.keys()):
            standing, loss = self.standings[policy], losses[policy]
            before = loss if standing.smoothed_loss is None else standing.smoothed_loss
            smoothed = before + (loss - before) * rows_P[policy] / (rows_P[policy] + _SMOOTHED_OVER)
            lowest = smoothed if standing.lowest_loss is None else min(standing.lowest_loss, smoothed)
            standing.smoothed_loss, standing.lowest_loss = smoothed, lowest
            if not smoothed > 2 * max(lowest, math.log(2)):
                continue
            if standing.taken_back_at is not None:
                again = f"it doubled again at half the learning rate, to {smoothed:.2f} at step {step}"
                self.drop(policy, f"its training loss doubled, and {again}; {_REMEDY}")
                continue
            standing.taken_back_at, standing.smoothed_loss = step, None
            found.append(policy)
        return found

    def take_back(self, policy: int) -> list[int]:
        """Give a policy's adapters their best weights again; the adapters, whose optimiser is to start over."""
        adapters = self.members.adapters(policy)
        for adapter in (adapter for adapter in adapters if adapter in self._best):
            self._bank.restore(adapter, self._best[adapter])
        return adapters

    @property
    def rates(self) -> list[float]:
        """What each adapter's learning rate is multiplied by."""
        return [0.5 if self.standings[policy].taken_back_at is not None else 1.0 for policy in self.members.owners]

    def drop(self, adapter: int, reason: str) -> None:
        """Give up the policy of an adapter."""
        self.standings[self.members.owners[adapter]].dropped = reason

    def drop_diverged(self, adapter: int, step: int) -> None:
        """Give up the policy of an adapter whose training loss is not finite."""
        self.drop(adapter, f"training loss is not finite at step {step}; {_REMEDY}")

    def drop_unmoved(self) -> None:
        """Give up policies whose adapter no step has moved: it would be exported as one that does nothing."""
        for policy in range(len(self.standings)):
            if self.standings[policy].active and policy not in self._best and self._bank.inert(policy):
                self.drop(policy, "no step of training moved its adapter; raise training.max_steps or training.epochs")

    def best(self, policy: int) -> AdapterWeights:
        """The weights of the best evaluation; the present ones when there was none."""
        return self._best.get(policy) or self._bank.adapter(policy)

    def out_of_fold(self, policy: int) -> Logits | None:
        """Label logits of a policy's rows, each by the fold that holds it out, at the step of its best weights."""
        return self._answers.get(policy)

    def save(self, folder: Path) -> None:
        """Write the standings and best weights into a checkpoint."""
        tensors = {
            f"{policy}|{name}|{half}": tensor
            for policy, weights in self._best.items()
            for name, pair in weights.tensors.items()
            for half, tensor in zip("AB", pair, strict=True)
        }
        save_tensors(tensors, folder / _WEIGHTS)
        standings = [asdict(standing) for standing in self.standings]
        answers = {str(policy): logits for policy, logits in self._answers.items()}
        write_json(folder / _STATE, {"judged": self.judged, "standings": standings, "out_of_fold": answers})

    def load(self, folder: Path) -> None:
        """Inverse of :meth:`save`."""
        state = json.loads((folder / _STATE).read_text())
        self.judged = state["judged"]
        self.standings = [Standing(**entry) for entry in state["standings"]]
        self._answers = {int(policy): logits for policy, logits in state["out_of_fold"].items()}
        halves: dict[int, dict[str, dict[str, torch.Tensor]]] = {}
        for key, tensor in load_file(folder / _WEIGHTS).items():
            policy, name, half = key.split("|")
            halves.setdefault(int(policy), {}).setdefault(name, {})[half] = tensor
        self._best = {
            policy: AdapterWeights(
                self._bank.specs[policy], {name: (pair["A"], pair["B"]) for name, pair in sorted(modules.items())}
            )
            for policy, modules in halves.items()
        }


class Tally:
    """Sums of loss per policy, in one column or in several (one for each temperature)."""

    def __init__(self, owners: Sequence[int], columns: int = 1) -> None:
        self._owners = owners  # the policy of every adapter
        self.sums = torch.zeros(max(owners) + 1, columns + 1, dtype=torch.float64)  # the last column counts

    def add(self, adapters: Sequence[int], losses: Sequence[float] | Sequence[Sequence[float]]) -> None:
        """Count one pass's losses, a number or a row of columns for each pair."""
        for adapter, loss in zip(adapters, losses, strict=True):
            row = list(loss) if isinstance(loss, Sequence) else [loss]
            self.sums[self._owners[adapter]] += torch.tensor([*row, 1.0], dtype=torch.float64)

    def means(self) -> dict[int, float]:
        """Least column mean of each policy that was seen; NaN where any column is."""
        seen = {policy: sums for policy, sums in enumerate(self.sums) if sums[-1] > 0}
        return {policy: (sums[:-1] / sums[-1]).min().item() for policy, sums in seen.items()}


class GradientStep(TrainerCallback):
    """Between backward and the optimiser's step: gradients are added over the processes, each policy's first one is
    looked at, and each is clipped by its own norm (0: not), so that one policy's outlier leaves another's step alone.

    A policy without a first gradient is given up: the activation is missing, the hooks do not fire, or the base's
    kernels lose the gradient. Training stops when no policy is left.
    """

    def __init__(self, bank: Bank, tracker: Tracker, processes: Processes = ALONE, limit: float = 0.0) -> None:
        self._bank, self._tracker, self._processes, self._limit = bank, tracker, processes, limit
        self._seen: set[int] = set()

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._processes.count > 1:
            self._agree(state.global_step, args.device)
            for parameter in self._bank.parameters():
                if parameter.grad is None:  # no row here in this step, but all_reduce needs every process
                    parameter.grad = torch.zeros_like(parameter)
            # A sum, not a mean: losses are weighted by the whole batch's counts.
            self._processes.add(grad for p in self._bank.parameters() if (grad := p.grad) is not None)
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
        if self._limit:
            self._bank.clip_gradients(self._limit)

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


def _no_gradient(layers: Sequence[str]) -> str:
    return (
        f"no gradient reached {len(layers)} adapted layer(s) after the first step ({', '.join(layers[:3])}); the "
        "adapter would stay what it is. Check adapter.targets, and that the base is not quantized by a method whose "
        "kernels drop gradients"
    )


@dataclass(frozen=True)
class TrainingRecord:
    """One policy's part of a training; ``settings`` have nothing left open, ``losses`` are curves by step."""

    policy: str | None = None
    adapter_digest: str | None = None
    standing: Standing = field(default_factory=Standing)
    steps: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    peak_bytes: int = 0
    out_of_fold: Logits | None = None
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def hyperparameters(self) -> dict[str, str]:
        """How the policy was trained, in words."""
        facts = {"steps": self.steps, "best_step": self.standing.best_step, **self.settings}
        return {name: str(value) for name, value in facts.items()}


def read_training(file: Path) -> TrainingRecord:
    """RunError where it cannot be read; a key that this version does not know is left alone."""
    content = unsealed(read_json(file, RunError, _PUT_BACK), file, RunError, _PUT_BACK)
    try:
        return decode(
            TrainingRecord, {item.name: content[item.name] for item in fields(TrainingRecord) if item.name in content}
        )
    except TypeError as error:
        raise refused(RunError, DAMAGED, f"{file} is damaged ({error}); {_PUT_BACK}") from error


def read_out_of_fold(file: Path) -> Logits:
    """The out-of-fold answers in a policy's ``training.json``; RunError where there are none."""
    answers = read_training(file).out_of_fold
    if answers is None:
        raise refused(RunError, DAMAGED, f"{file} has no out-of-fold answers; {_PUT_BACK}")
    return answers


def require_trained(file: Path, policy: str, adapter: str) -> None:
    """RunError unless ``file`` is of a policy, by its id, and of an adapter, by its digest."""
    record = read_training(file)
    for name, wanted in (("policy", policy), ("adapter_digest", adapter)):
        if (named := getattr(record, name)) != wanted:
            why = f"{file} has {name} {str(named)[:80]}, not {wanted}, which lies next to it; {_PUT_BACK}"
            raise refused(RunError, CHANGED, why)
