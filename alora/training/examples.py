"""Labelled rows → examples: one prefix and the pairs behind it.

A policy whose rows are in K folds has K + 1 adapters behind the same prefixes: one learns from all rows, and is the one
that is kept; fold k's learns from the rows of the other folds and answers for its own. So every row gets an answer of
an adapter that has not seen it, at the price of suffixes, for the prefix KV of a row is the same for all.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from alora.activation import last_occurrence
from alora.data.conversation import LabelledConversation
from alora.data.spool import Spool
from alora.errors import TrainingError
from alora.policy import Policy
from alora.prefix.passes import Pair
from alora.prompt.render import Renderer, Suffix
from alora.training.loss import pair_weights
from alora.training.processes import Processes


@dataclass(frozen=True, slots=True)
class Target:
    """What one policy should answer about an example's conversation. Token ids may lie on disk until they are read.
    ``fold``: the one of the policy's folds that holds the example out."""

    policy: int
    suffix_ids: Sequence[int]
    label_token_ids: tuple[int, ...]
    label: int
    label_weights: tuple[float, ...] = ()  # empty: all the same
    fold: int | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation: its prefix, a target for each policy that it is labelled for, and how much it counts."""

    prefix_ids: Sequence[int]
    targets: tuple[Target, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """Some conversations: ``pairs[i].prefix`` is an index into ``prefixes``; each pair has a label and a weight."""

    prefixes: tuple[tuple[int, ...], ...]
    pairs: tuple[Pair, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]
    label_weights: tuple[tuple[float, ...], ...] = ()  # of each pair's labels; empty: all the same


def examples(
    rows: Iterable[LabelledConversation], policies: Sequence[Policy], renderer: Renderer, activated: bool
) -> list[Example]:
    """Render ``rows`` for every policy that they are labelled for; a row without any is left out. For a standard LoRA
    (``activated`` is False) the whole prompt is suffix, because all of it is adapted."""
    suffixes, spool, made = [renderer.suffix(policy) for policy in policies], Spool(), []

    def target(index: int, label: str, fold: int | None, before: tuple[int, ...] = ()) -> Target:
        suffix = suffixes[index]
        ids = spool.keep(before + suffix.token_ids) if before else suffix.token_ids
        return Target(index, ids, suffix.label_token_ids, policies[index].label_index(label), fold=fold)

    shared = functools.cache(target)  # behind any prefix, rows of one label have one target
    for row in rows:
        labels = [
            (index, row.labels[policy.id], row.folds.get(policy.id))
            for index, policy in enumerate(policies)
            if policy.id in row.labels
        ]
        if not labels:
            continue
        prefix_ids = renderer.prefix(row.conversation).token_ids
        for index, *_ in labels:
            _require_one_activation(prefix_ids, suffixes[index], row.where)
        if activated:
            made.append(Example(spool.keep(prefix_ids), tuple(shared(*one) for one in labels), row.weight))
        else:
            # A standard LoRA shares no prefix: its whole prompt is suffix.
            made.append(Example((), tuple(target(*one, prefix_ids) for one in labels), row.weight))
    return made


def balanced(rows: Sequence[Example]) -> list[Example]:
    """``rows`` with label weights that give every label that a policy has rows of the same total weight."""
    totals: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        for target in row.targets:
            totals[target.policy][target.label] += row.weight

    @functools.cache
    def weighted(target: Target) -> Target:
        found = {label: total for label, total in totals[target.policy].items() if total}
        total, labels = sum(found.values()), range(len(target.label_token_ids))
        weights = (total / (len(found) * found[label]) if label in found else 1.0 for label in labels)
        return replace(target, label_weights=tuple(weights))

    return [replace(row, targets=tuple(map(weighted, row.targets))) for row in rows]


def _require_one_activation(prefix_ids: tuple[int, ...], suffix: Suffix, where: str) -> None:
    found = last_occurrence(prefix_ids + suffix.token_ids, suffix.invocation_ids)
    if found != len(prefix_ids):
        raise TrainingError(
            f"{where}: PEFT would activate at token {found}, the prompt splits at {len(prefix_ids)}; "
            "this is a fault of the renderer, please report it with the row"
        )


def collate(items: Sequence[Example]) -> dict[str, Batch | torch.Tensor]:
    """Join examples into what the trainer passes on: the batch, and its labels as a tensor for the trainer's counts."""
    pairs, labels = [], []
    for index, item in enumerate(items):
        for target in item.targets:
            pairs.append(Pair(index, target.policy, tuple(target.suffix_ids), target.label_token_ids))
            labels.append(target.label)
    shares = pair_weights([pair.policy for pair in pairs])
    weights = [share * items[pair.prefix].weight for share, pair in zip(shares, pairs, strict=True)]
    of_labels = tuple(target.label_weights for item in items for target in item.targets)
    prefixes = tuple(tuple(item.prefix_ids) for item in items)
    batch = Batch(prefixes, tuple(pairs), tuple(labels), tuple(weights), of_labels if any(of_labels) else ())
    return {"batch": batch, "labels": torch.tensor(labels)}


@dataclass(frozen=True)
class Members:
    """The adapters of a bank: adapter ``p`` is policy p's own, and behind those of all policies stand the folds'.
    ``folds`` has each policy's number of folds, 0 where it has none."""

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
