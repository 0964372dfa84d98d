"""What is timed: an arm runs one step (forward and backward), and says which pairs it ran and what came out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, TrainingArguments

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights
from alora.bench.workload import Workload, pair_digest
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.store import PrefixStore
from alora.training.examples import Batch
from alora.training.track import Tracker
from alora.training.trainer import SplitModel, SplitTrainer

_NO_ANSWER = -1  # of a pair that is none of the batch's

Gradients = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Work:
    """One pair that a step ran: the digest of its tokens and answer, and the length of its prompt."""

    digest: str
    tokens: int


@dataclass(frozen=True)
class Outcome:
    """What a step computed for one pair. ``objective`` names the loss: over the label tokens, or the vocabulary."""

    digest: str
    objective: str
    loss: float
    gradients: Gradients


class Arm(Protocol):
    """One way to do the work. ``step`` is what the clock sees; everything else is done before or after."""

    name: str

    def step(self) -> None:
        """Forward and backward of all its pairs."""
        ...

    def clear(self) -> None:
        """Drop the gradients, so that every step starts alike."""
        ...

    def work(self) -> list[Work]:
        """The pairs of a step, from the tokens that the model is given."""
        ...


class PackedArm:
    """Ours: P policies behind one prefix, by the ``training_step`` of :class:`~alora.training.trainer.SplitTrainer`.

    Args:
        base: shared with other packed arms; hooks without a route cost nothing that a clock sees.
        vocabulary: train the answer against the whole vocabulary, as language-model trainers do, instead of against
            the label tokens; to compare with those.
        store: prefix KV kept between steps.
    """

    def __init__(
        self,
        name: str,
        base: PreTrainedModel,
        adapters: Sequence[AdapterWeights],
        workload: Workload,
        scratch: Path,
        max_suffix_tokens: int = 4096,
        vocabulary: bool = False,
        store: PrefixStore | None = None,
    ) -> None:
        self.name = name
        self.objective = "vocabulary" if vocabulary else "labels"
        self._bank = Bank(base, adapters, trainable=True)
        self._model = SplitModel(PackedModel(base, self._bank), store)
        self._given: list[tuple[Sequence[tuple[int, ...]], Sequence[Pair]]] = []  # prefixes and pairs of each pass
        self._model.register_forward_pre_hook(self._record, with_kwargs=True)
        self.untrained = list(range(workload.policies))  # policies of which outcomes() has not seen a gradient
        self._batch = self._batch_of(workload, base.config.vocab_size)
        self._trainer = SplitTrainer(
            model=self._model,
            args=quiet_arguments(scratch, base.device),
            tracker=Tracker(self._bank, patience=0),
            max_suffix_tokens=max_suffix_tokens,
        )
        self._trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not timed

    def _batch_of(self, workload: Workload, vocab: int) -> Batch:
        pairs, labels = workload.pairs, workload.labels
        if self.objective == "vocabulary":
            pairs = tuple(Pair(0, pair.policy, pair.suffix_ids, tuple(range(vocab))) for pair in pairs)
            labels = tuple(workload.answer(policy) for policy in range(workload.policies))
        return Batch((workload.prefix_ids,), pairs, labels, (1.0,) * len(pairs))

    def on(self, workload: Workload) -> PackedArm:
        """The same arm, adapters and gradients on other prompts."""
        other = copy.copy(self)
        other._batch = self._batch_of(workload, self._model.packed.base.config.vocab_size)
        return other

    def step(self) -> None:
        """Prefix once without gradient, then all suffixes, pass by pass."""
        self._trainer.training_step(self._model, {"batch": self._batch})

    def clear(self) -> None:
        """Drop the bank's gradients and the record of what ran."""
        self._bank.zero_grad(set_to_none=True)
        self._given.clear()

    def _record(self, module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Two references per pass, which no clock sees. A pass without gradient trains nothing and does not count."""
        if torch.is_grad_enabled():
            self._given.append((given["prefixes"], given["pairs"]))

    def work(self) -> list[Work]:
        """One entry per pair that the model was given since :meth:`clear`; runs a step where there was none."""
        if not self._given:
            self.clear()
            self.step()
            self._bank.zero_grad(set_to_none=True)
        labels = dict(zip(map(self._key, self._batch.pairs), self._batch.labels, strict=True))
        found = []
        for prefixes, pairs in self._given:
            for pair in pairs:
                prompt, label = prefixes[pair.prefix] + pair.suffix_ids, labels.get(self._key(pair))
                answer = _NO_ANSWER if label is None else pair.label_token_ids[label]
                found.append(Work(pair_digest(prompt, answer), len(prompt)))
        return found

    @staticmethod
    def _key(pair: Pair) -> tuple[int, tuple[int, ...]]:
        return pair.policy, pair.suffix_ids

    @torch.no_grad()
    def _losses(self) -> list[float]:
        logits_nL = self._model.eval()(self._batch.prefixes, self._batch.pairs)
        labels_n = torch.tensor(self._batch.labels, device=logits_nL.device)
        return torch.nn.functional.cross_entropy(logits_nL, labels_n, reduction="none").tolist()

    def outcomes(self, policies: Sequence[int]) -> list[Outcome]:
        """Loss and gradients of some policies, from one step of the arm itself."""
        self.clear()
        self.step()
        losses, batch, found = self._losses(), self._batch, []
        for policy in policies:
            copied = {name: (a.clone(), b.clone()) for name, (a, b) in self._bank.gradients(policy).items()}
            pair, label = batch.pairs[policy], batch.labels[policy]
            digest = pair_digest(batch.prefixes[pair.prefix] + pair.suffix_ids, pair.label_token_ids[label])
            found.append(Outcome(digest, self.objective, losses[policy], copied))
        self.untrained = [pair.policy for pair in batch.pairs if not self._has_gradient(pair.policy)]
        self.clear()
        return found

    def _has_gradient(self, policy: int) -> bool:
        """Whether every gradient matrix of ``policy`` is finite and not zero."""
        halves = [half for pair in self._bank.gradients(policy).values() for half in pair]
        norms = torch.stack([half.norm() for half in halves])
        return bool((norms.isfinite() & (norms > 0)).all())

    def gradients(self, policy: int) -> Gradients:
        """What the last step left for one policy."""
        return self._bank.gradients(policy)

    def close(self) -> None:
        """Take the bank's hooks off the base."""
        self._bank.release()


def quiet_arguments(scratch: Path, device: torch.device) -> TrainingArguments:
    """What every trainer of a benchmark is given: batch of one conversation, float32 as loaded, nothing written."""
    options = trainer_options(scratch, device)
    return TrainingArguments(**options)


def trainer_options(scratch: Path, device: torch.device) -> dict[str, Any]:
    """The options behind :func:`quiet_arguments`, for subclasses of ``TrainingArguments``."""
    return {
        "output_dir": str(scratch),
        "per_device_train_batch_size": 1,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "use_cpu": device.type == "cpu",
    }
