"""The folds of a policy, each a further adapter of the bank behind the same prefixes.

A policy whose rows are in K folds has K + 1 adapters: one learns from all rows, and is the one that is kept; fold k's
learns from the rows of the other folds and answers for its own. So every row gets an answer of an adapter that has not
seen it, at the price of suffixes, for the prefix KV of a row is the same for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from alora.training.examples import Batch, Example, Target
from alora.training.processes import Processes


@dataclass(frozen=True)
class Members:
    """The adapters of a bank: adapter ``p`` is policy p's own, and behind those of all policies stand the folds'.

    ``folds`` has each policy's number of folds, 0 where it has none.
    """

    folds: tuple[int, ...]

    @staticmethod
    def of(train: Sequence[Example], policies: int) -> "Members":
        """The members that the rows' folds ask for."""
        folds = [0] * policies
        for target in (target for example in train for target in example.targets):
            if target.fold is not None:
                folds[target.policy] = max(folds[target.policy], target.fold + 1)
        return Members(tuple(folds))

    @property
    def owners(self) -> tuple[int, ...]:
        """The policy of every adapter."""
        return (*range(len(self.folds)), *(policy for policy, count in enumerate(self.folds) for _ in range(count)))

    def adapters(self, policy: int) -> list[int]:
        """A policy's own adapter, and its folds'."""
        return [adapter for adapter, owner in enumerate(self.owners) if owner == policy]

    def fold(self, policy: int, fold: int) -> int:
        """The adapter of one of a policy's folds."""
        return len(self.folds) + sum(self.folds[:policy]) + fold

    def train(self, examples: Sequence[Example]) -> list[Example]:
        """``examples`` for every adapter that learns from them."""
        return [replace(example, targets=tuple(self._learners(example))) for example in examples]

    def held_out(self, train: Sequence[Example], validation: Sequence[Example]) -> list[Example]:
        """What every adapter is judged by: the rows of its fold, and the validation rows."""
        asked = (replace(example, targets=tuple(self._judges(example))) for example in train)
        return [*(example for example in asked if example.targets), *validation]

    def _learners(self, example: Example) -> Iterator[Target]:
        for target in example.targets:
            yield target
            others = range(self.folds[target.policy] if target.fold is not None else 0)
            yield from (replace(target, policy=self.fold(target.policy, k)) for k in others if k != target.fold)

    def _judges(self, example: Example) -> Iterator[Target]:
        for target in example.targets:
            if target.fold is not None:
                yield replace(target, policy=self.fold(target.policy, target.fold))


class HeldOutAnswers:
    """What the folds answer in one evaluation, row by row, wherever a process computed it."""

    def __init__(self, members: Members, processes: Processes) -> None:
        self._members, self._processes = members, processes
        self._rows: dict[int, list[torch.Tensor]] = {policy: [] for policy, count in enumerate(members.folds) if count}
        self._owners = members.owners
        self._batch: list[torch.Tensor | None] = []

    def open(self, batch: Batch) -> None:
        """Begin a batch: a row of zeros for each pair of a fold, which the process that computes it fills in."""
        self._batch = []
        for pair in batch.pairs:
            own = pair.policy >= len(self._members.folds)
            self._batch.append(torch.zeros(len(pair.label_token_ids), dtype=torch.float64) if own else None)
            if (row := self._batch[-1]) is not None:
                self._rows[self._owners[pair.policy]].append(row)

    def add(self, part: Sequence[int], logits_nL: torch.Tensor) -> None:
        """The label logits of some pairs of the batch."""
        for index, logits_L in zip(part, logits_nL.double().cpu(), strict=True):
            if (row := self._batch[index]) is not None:
                row += logits_L[: len(row)]

    def by_policy(self, device: torch.device) -> dict[int, list[list[float]]]:
        """Label logits per policy in folds, in the order of its rows, the same on every process."""
        whole = {policy: torch.stack(rows).to(device) for policy, rows in self._rows.items() if rows}
        self._processes.add(whole.values())
        return {policy: rows_nL.tolist() for policy, rows_nL in whole.items()}
