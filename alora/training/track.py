"""Best checkpoint, early stopping and divergence, policy by policy.

The policies of a bank are trained together but judged apart: each keeps the weights of its own best validation loss,
stops when that has not improved for a while, and is dropped when its loss is no longer finite. A stopped or dropped
policy costs nothing from then on and never touches the others.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights, save_tensors
from alora.atomic import write_json
from alora.errors import RunError
from alora.reading import read_json

_REMEDY = "lower training.learning_rate, look at its rows, or take base.dtype=float32"
_WEIGHTS, _STATE = "best.safetensors", "policies.json"


@dataclass
class Standing:
    """How one policy stands: losses are validation losses, steps are optimiser steps."""

    best_loss: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    stopped_at: int | None = None
    dropped: str | None = None  # why its training was given up

    @property
    def active(self) -> bool:
        return self.stopped_at is None and self.dropped is None


def read_standing(record: Path) -> Standing:
    """The standing in a policy's ``training.json``.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return Standing(**read_json(record, RunError, "remove it")["standing"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{record} cannot be read ({error})") from error


def read_hyperparameters(record: Path) -> dict[str, str]:
    """How a policy was trained, in words from its ``training.json``: steps, and settings with nothing left open.

    Raises:
        RunError: it cannot be read.
    """
    content = read_json(record, RunError, "remove it")
    try:
        facts = {"steps": content["steps"], "best_step": content["standing"]["best_step"], **content["settings"]}
        return {name: str(value) for name, value in facts.items()}
    except (KeyError, TypeError) as error:
        raise RunError(f"{record} cannot be read ({error})") from error


class Tracker:
    """The standings of a bank's policies, with a copy of each one's best weights."""

    def __init__(self, bank: Bank, patience: int) -> None:
        self._bank, self._patience = bank, patience
        self.standings = [Standing() for _ in bank.specs]
        self.judged: int | None = None  # the step of the last evaluation
        self.trained: set[int] = set()  # policies that had a row since the last optimiser step
        self._best: dict[int, AdapterWeights] = {}

    @property
    def active(self) -> frozenset[int]:
        return frozenset(policy for policy, standing in enumerate(self.standings) if standing.active)

    def judge(self, losses: Mapping[int, float], step: int) -> None:
        """Take in one evaluation's validation loss per policy."""
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
                self._best[policy] = self._bank.adapter(policy)
            else:
                standing.evaluations_since_best += 1
                if self._patience and standing.evaluations_since_best >= self._patience:
                    standing.stopped_at = step

    def drop(self, policy: int, reason: str) -> None:
        self.standings[policy].dropped = reason

    def drop_diverged(self, policy: int, step: int) -> None:
        """Give up one policy whose training loss is not finite."""
        self.drop(policy, f"training loss is not finite at step {step}; {_REMEDY}")

    def drop_unmoved(self) -> None:
        """Give up policies whose adapter no step has moved: it would be exported as one that does nothing."""
        for policy in self.active - self._best.keys():
            if self._bank.inert(policy):
                self.drop(
                    policy, "no step of the training moved its adapter; raise training.max_steps or training.epochs"
                )

    def best(self, policy: int) -> AdapterWeights:
        """The weights of the best evaluation; the present ones when there was none."""
        return self._best.get(policy) or self._bank.adapter(policy)

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
        write_json(folder / _STATE, {"judged": self.judged, "standings": standings})

    def load(self, folder: Path) -> None:
        """Inverse of :meth:`save`."""
        state = json.loads((folder / _STATE).read_text())
        self.judged = state["judged"]
        self.standings = [Standing(**entry) for entry in state["standings"]]
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

    def __init__(self, policies: int, columns: int = 1) -> None:
        self.sums = torch.zeros(policies, columns + 1, dtype=torch.float64)  # the last column counts

    def add(self, policies: Sequence[int], losses: Sequence[float] | Sequence[Sequence[float]]) -> None:
        """Count one pass's losses, a number or a row of columns for each pair."""
        for policy, loss in zip(policies, losses, strict=True):
            row = list(loss) if isinstance(loss, Sequence) else [loss]
            self.sums[policy] += torch.tensor([*row, 1.0], dtype=torch.float64)

    def means(self) -> dict[int, float]:
        """Least column mean of each policy that was seen; NaN where any column is."""
        seen = {policy: sums for policy, sums in enumerate(self.sums) if sums[-1] > 0}
        return {policy: (sums[:-1] / sums[-1]).min().item() for policy, sums in seen.items()}
