"""What each arm should answer, by PEFT and transformers on the whole prompt, and how far an arm is from it."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from alora.activation import peft_offset
from alora.bench.baselines import peft_model, put_adapter
from alora.bench.serving.material import Material
from alora.bench.serving.records import Burst

Probabilities = tuple[float, ...]
Key = tuple[tuple[int, ...], int]  # prefix ids and place


@dataclass(frozen=True)
class Agreement:
    """Verdicts of an arm beside those of ``against``: ``same`` of ``checked`` name the same label.

    ``worst`` is the largest difference of a probability; ``moved`` by how much the checked adapters move the base's
    answer on average, None where no adapter is meant to.
    """

    against: str
    checked: int
    same: int
    worst: float
    moved: float | None = None


@dataclass(frozen=True)
class References:
    """PEFT's own probabilities for sampled policies, by kind of arm; ``moved`` as in :class:`Agreement`."""

    alora: Mapping[Key, Probabilities]
    lora: Mapping[Key, Probabilities]
    base: Mapping[Key, Probabilities]
    moved: float

    def of(self, arm: str) -> tuple[str, Mapping[Key, Probabilities]]:
        """Name and answers of an arm's reference."""
        if arm == "lora":
            return "PEFT's LoRA", self.lora
        if arm == "base":
            return "transformers", self.base
        return "PEFT's aLoRA", self.alora


@torch.inference_mode()
def ask_references(material: Material, prefixes: Sequence[tuple[int, ...]], places: Sequence[int]) -> References:
    """Full-sequence answers for every prefix and sampled place, each adapter in a model of its own."""
    alora: dict[Key, Probabilities] = {}
    lora: dict[Key, Probabilities] = {}
    base: dict[Key, Probabilities] = {}
    moved = []
    for place in places:
        labels = material.labels[place]
        for kind, adapter, found in (
            ("alora", material.adapters[place], alora),
            ("lora", material.twin(place), lora),
        ):
            model: Any = peft_model(material.model, adapter.spec).eval()
            put_adapter(model, adapter)
            for prefix in prefixes:
                prompt = prefix + material.suffixes[place]
                options = {"alora_offsets": [peft_offset(len(prompt), len(prefix))]} if kind == "alora" else {}
                found[prefix, place] = _ask(model, prompt, labels, options)
            del model
            gc.collect()
        for prefix in prefixes:
            base[prefix, place] = _ask(material.model, prefix + material.policy_texts[place], labels, {})
        plain = _ask(material.model, prefixes[0] + material.suffixes[place], labels, {})
        for found in (alora, lora):
            moved.append(difference(found[prefixes[0], place], plain))
    return References(alora, lora, base, sum(moved) / len(moved))


def _ask(model: Any, prompt: tuple[int, ...], labels: Sequence[int], options: Mapping[str, Any]) -> Probabilities:
    ids = torch.tensor([prompt], device=model.device)
    logits_V = model(input_ids=ids, logits_to_keep=1, use_cache=False, **options).logits[0, -1]
    return tuple(torch.softmax(logits_V[list(labels)].float(), 0).tolist())


def probabilities(burst: Burst) -> list[Probabilities]:
    """Label probabilities of every answer of a battery."""
    return [tuple(torch.softmax(torch.tensor(answer.scores), 0).tolist()) for answer in burst.answers]


def difference(one: Probabilities, other: Probabilities) -> float:
    """Largest difference of a label's probability."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def compare(
    prefix_ids: tuple[int, ...], burst: Burst, wanted: Mapping[Key, Probabilities], against: str, moved: float | None
) -> Agreement:
    """An arm's battery beside a reference, over the policies that the reference knows."""
    checked, same, worst = 0, 0, 0.0
    for piece, found in zip(burst.pieces, probabilities(burst), strict=True):
        right = wanted.get((prefix_ids, piece.place))
        if right is None:
            continue
        checked += 1
        same += found.index(max(found)) == right.index(max(right))
        gap = difference(found, right)
        worst = max(worst, gap) if gap == gap else float("inf")  # NaN would vanish in max
    return Agreement(against, checked, same, worst, moved)


def merge(one: Agreement, other: Agreement) -> Agreement:
    """Two comparisons with one reference as one."""
    return Agreement(
        one.against, one.checked + other.checked, one.same + other.same, max(one.worst, other.worst), one.moved
    )
