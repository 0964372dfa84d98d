"""What a training step is for ours: P policies behind one prefix, packed; and what its outcome is compared by."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel, TrainingArguments

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights
from alora.bench.material import INVOCATION, LABELS, draw_suffix, token_ids
from alora.bench.trials import Piece
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.store import PrefixStore
from alora.training.examples import Batch
from alora.training.model import SharedPrefixModel
from alora.training.track import Tracker
from alora.training.trainer import SharedPrefixTrainer

Gradients = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class TrainingPrompts:
    """Pairs (conversation, policy) of one step: one prefix, and per policy a suffix and the index of its label."""

    prefix_ids: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]

    @classmethod
    def draw(
        cls, vocab: int, prefix: int, suffix: int, policies: int, seed: int,
        banned: frozenset[int] = frozenset(INVOCATION),
    ) -> Self:  # fmt: skip
        """Random ones. Pair ``p`` is the same for any number of policies above ``p``."""
        suffixes = tuple(draw_suffix(vocab, suffix, seed + 1 + policy).token_ids for policy in range(policies))
        labels = tuple(policy % len(LABELS) for policy in range(policies))
        return cls(token_ids(vocab, prefix, seed, banned), suffixes, labels)

    def prompt(self, policy: int) -> tuple[int, ...]:
        return self.prefix_ids + self.suffixes[policy]

    def answer(self, policy: int) -> int:
        return LABELS[self.labels[policy]]

    def piece(self, policy: int) -> Piece:
        return Piece.of(self.prompt(policy), (self.answer(policy),), policy)


@dataclass(frozen=True)
class Outcome:
    """What a step computed for one pair. ``objective`` names the loss: over the label tokens, or the vocabulary."""

    piece: Piece
    objective: str
    loss: float
    gradients: Gradients


def difference(ours: Outcome, reference: Outcome) -> float:
    """Largest relative difference of the loss and of each gradient matrix; infinite where they cannot be compared."""
    if (ours.piece.digest, ours.objective) != (reference.piece.digest, reference.objective):
        return math.inf
    if not reference.gradients or ours.gradients.keys() != reference.gradients.keys():
        return math.inf
    apart = [abs(ours.loss - reference.loss) / max(abs(reference.loss), 1e-12)]
    for name, theirs in reference.gradients.items():
        for mine, wanted in zip(ours.gradients[name], theirs, strict=True):
            norm = wanted.norm().item()
            apart.append((mine.to(wanted.dtype) - wanted).norm().item() / norm if norm > 0 else math.inf)
    return max(apart) if all(map(math.isfinite, apart)) else math.inf  # max() passes over NaN


class PackedTrainer:
    """Ours: P policies behind one prefix, by :meth:`alora.training.trainer.SharedPrefixTrainer.training_step`.

    Args:
        vocabulary: train the answer against the whole vocabulary instead of the label tokens, as language-model
            trainers do; to compare with those.
        store: prefix KV kept between steps.
    """

    def __init__(
        self, base: PreTrainedModel, adapters: Sequence[AdapterWeights], prompts: TrainingPrompts, scratch: Path,
        max_suffix_tokens: int = 4096, vocabulary: bool = False, store: PrefixStore | None = None,
    ) -> None:  # fmt: skip
        self.objective, self._vocab = "vocabulary" if vocabulary else "labels", base.config.vocab_size
        self._bank = Bank(base, adapters, trainable=True)
        self._model = SharedPrefixModel(PackedModel(base, self._bank), store)
        self._ran: list[tuple[Sequence[tuple[int, ...]], Sequence[Pair]]] = []  # prefixes and pairs of each pass
        self._model.register_forward_pre_hook(self._note, with_kwargs=True)
        self._batch = self._batch_of(prompts)
        arguments = TrainingArguments(**trainer_options(scratch, base.device))
        self._trainer = SharedPrefixTrainer(
            model=self._model, args=arguments, tracker=Tracker(self._bank, patience=0),
            max_suffix_tokens=max_suffix_tokens,
        )  # fmt: skip
        self._trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not timed

    def _batch_of(self, prompts: TrainingPrompts) -> Batch:
        words, labels = LABELS, prompts.labels
        if self.objective == "vocabulary":
            words, labels = tuple(range(self._vocab)), tuple(map(prompts.answer, range(len(labels))))
        pairs = tuple(Pair(0, policy, ids, words) for policy, ids in enumerate(prompts.suffixes))
        return Batch((prompts.prefix_ids,), pairs, labels, (1.0,) * len(pairs))

    @property
    def policies(self) -> int:
        """P: the number of pairs of a step, because there is one conversation."""
        return len(self._batch.pairs)

    @property
    def shared_tokens(self) -> int:
        return len(self._batch.prefixes[0])

    def on(self, prompts: TrainingPrompts) -> Self:
        other = copy.copy(self)
        other._batch = self._batch_of(prompts)
        return other

    def step(self) -> None:
        """Prefix once without gradient, then all suffixes, pass by pass."""
        self._trainer.training_step(self._model, {"batch": self._batch})

    def clear(self) -> None:
        """Drop the gradients and the record of what ran, so that every step starts alike."""
        self._bank.zero_grad(set_to_none=True)
        self._ran.clear()

    def _note(self, module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        # two references a pass cost no time; a pass without gradient trains nothing and does not count
        if torch.is_grad_enabled():
            self._ran.append((given["prefixes"], given["pairs"]))

    def pieces(self) -> list[Piece]:
        """The pairs that the model ran since :meth:`clear`."""
        labels = {(p.policy, p.suffix_ids): n for p, n in zip(self._batch.pairs, self._batch.labels, strict=True)}
        pieces = []
        for prefixes, pairs in self._ran:
            for pair in pairs:
                label = labels.get((pair.policy, pair.suffix_ids))
                answer = () if label is None else (pair.label_token_ids[label],)
                pieces.append(Piece.of(prefixes[pair.prefix] + pair.suffix_ids, answer, pair.policy))
        return pieces

    def outcomes(self, policies: Sequence[int]) -> tuple[list[Outcome], list[int]]:
        """Loss and gradients of some policies from one step; and the policies that got no finite gradient."""
        self.clear()
        self.step()
        with torch.no_grad():
            logits_nL = self._model.eval()(self._batch.prefixes, self._batch.pairs)
        labels_n = torch.tensor(self._batch.labels, device=logits_nL.device)
        losses = torch.nn.functional.cross_entropy(logits_nL, labels_n, reduction="none").tolist()
        pieces, outcomes = {piece.policy: piece for piece in self.pieces()}, []
        for policy in policies:
            gradients = {name: (a.clone(), b.clone()) for name, (a, b) in self.gradients(policy).items()}
            piece = pieces.get(policy, Piece("not run", policy, 0))
            outcomes.append(Outcome(piece, self.objective, losses[policy], gradients))
        untrained = [pair.policy for pair in self._batch.pairs if not self._has_gradient(pair.policy)]
        self.clear()
        return outcomes, untrained

    def _has_gradient(self, policy: int) -> bool:
        """Whether every gradient matrix of ``policy`` is finite and not zero."""
        norms = torch.stack([half.norm() for pair in self.gradients(policy).values() for half in pair])
        return bool((norms.isfinite() & (norms > 0)).all())

    def gradients(self, policy: int) -> Gradients:
        return self._bank.gradients(policy)

    def close(self) -> None:
        self._bank.release()


def trainer_options(scratch: Path, device: torch.device) -> dict[str, Any]:
    """Options of every trainer: batch of one conversation, float32 as loaded, nothing written."""
    return {
        "output_dir": str(scratch), "per_device_train_batch_size": 1, "report_to": [], "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False, "remove_unused_columns": False,
        "label_names": ["labels"], "use_cpu": device.type == "cpu",
    }  # fmt: skip
