"""What each arm should answer, by PEFT and transformers on the whole prompt, and how far an arm is from it."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from alora.activation import peft_offset
from alora.bench.baselines import peft_model, put_adapter
from alora.bench.serving.material import Material
from alora.bench.serving.records import BASE_STAGES, Burst, Cell, Trial

if TYPE_CHECKING:
    from alora.bench.serving.context import Bench

FEWEST = 2  # requests of an arm and cell: of one alone, nobody would know whether the others are right
Probabilities = tuple[float, ...]
Key = tuple[tuple[int, ...], int]  # prefix ids and place


@dataclass(frozen=True)
class Agreement:
    """Verdicts of an arm beside those of ``against``: ``same`` of ``checked`` name the same label.

    ``worst`` is the largest difference of a probability, 1 where an answer is no number; ``moved`` by how much the
    checked adapters move the base's answer on average, None where no adapter is meant to.
    """

    against: str
    checked: int
    same: int
    worst: float
    moved: float | None = None


@dataclass(frozen=True)
class References:
    """PEFT's own probabilities for sampled requests, by kind of arm; ``moved`` by kind, as in :class:`Agreement`."""

    alora: Mapping[Key, Probabilities]
    lora: Mapping[Key, Probabilities]
    base: Mapping[Key, Probabilities]
    moved: Mapping[str, float]

    def of(self, arm: str) -> tuple[str, Mapping[Key, Probabilities], float | None]:
        """Name and answers of an arm's reference, and how far its adapters move the base."""
        kind = kind_of(arm)
        name, answers = {
            "lora": ("PEFT's LoRA", self.lora),
            "base": ("transformers", self.base),
            "alora": ("PEFT's aLoRA", self.alora),
        }[kind]
        return name, answers, None if kind == "base" else self.moved.get(kind, 0.0)


def kind_of(arm: str) -> str:
    """Whose answers an arm should give: the null arm and the packed scorer run aLoRAs too."""
    return arm if arm in ("lora", "base") else "alora"


def stage_of(cells: Sequence[Cell], cell: Cell, stage: str) -> Cell | None:
    """Another stage of the same condition."""
    wanted = {**cell.at, "stage": stage}
    return next((one for one in cells if one.workload == cell.workload and one.at == wanted), None)


def prefix_of(bench: Bench, cell: Cell, trial: Trial) -> tuple[int, ...] | None:
    """What a trial's requests have in common: the conversation, and in ``pipeline`` what the base then said in it.

    None where that is not known.
    """
    asked = bench.conversation(cell.at["length"])
    if cell.workload != "pipeline":
        return asked
    before = stage_of(bench.cells, cell, "base")
    said = [] if before is None else [one for one in before.of(trial.arm) if one.round == trial.round]
    return asked + said[0].burst.answers[0].output_ids if said else None


def sampled(bench: Bench) -> dict[str, list[Key]]:
    """Requests to ask the references about: of every cell and arm some that it really ran, from different rounds, and
    those of the open loop that are to be asked about.
    """
    wanted: dict[str, dict[Key, None]] = {"alora": {}, "lora": {}, "base": {}}
    for cell in bench.cells:
        if cell.at.get("stage") in BASE_STAGES:
            continue
        for name in cell.arms:
            count = 1 if name == "base" else max(FEWEST, bench.settings.serving.checked)
            wanted[kind_of(name)].update(dict.fromkeys(_sampled(bench, cell, name, count)))
    for verdict in bench.verdicts:
        if verdict.asked:
            wanted[kind_of(verdict.arm)][verdict.prefix_ids, verdict.place] = None
    return {kind: list(keys) for kind, keys in wanted.items()}


def _sampled(bench: Bench, cell: Cell, name: str, count: int) -> list[Key]:
    trials, found = cell.of(name), []
    for number in range(count):
        trial = trials[number * len(trials) // count]
        places = sorted({piece.place for piece in trial.burst.pieces})
        prefix = prefix_of(bench, cell, trial)
        if prefix is not None and places:
            found.append((prefix, places[number * len(places) // count]))
    return found


@torch.inference_mode()
def ask_references(material: Material, wanted: Mapping[str, Sequence[Key]]) -> References:
    """Full-sequence answers to every wanted request, by kind of arm; each kind in a PEFT model of its own."""
    found: dict[str, dict[Key, Probabilities]] = {"alora": {}, "lora": {}}
    moved: dict[str, float] = {}
    for kind, answers in found.items():
        keys = sorted(wanted[kind], key=lambda key: (key[1], len(key[0])))
        model: Any = None
        gaps, spec = {}, None
        for prefix, place in keys:
            adapter = material.adapters[place] if kind == "alora" else material.twin(place)
            if adapter.spec != spec:
                model, spec = None, adapter.spec
                gc.collect()
                model = peft_model(material.model, spec).eval()
            put_adapter(model, adapter)
            prompt, labels = prefix + material.suffixes[place], material.labels[place]
            options = {"alora_offsets": [peft_offset(len(prompt), len(prefix))]} if kind == "alora" else {}
            answers[prefix, place] = _ask(model, prompt, labels, options)
            if place not in gaps:
                gaps[place] = difference(answers[prefix, place], _ask(material.model, prompt, labels, {}))
        moved[kind] = sum(gaps.values()) / len(gaps) if gaps else 0.0
    base = {
        (prefix, place): _ask(material.model, prefix + material.policy_texts[place], material.labels[place], {})
        for prefix, place in wanted["base"]
    }
    return References(found["alora"], found["lora"], base, moved)


def _ask(model: Any, prompt: tuple[int, ...], labels: Sequence[int], options: Mapping[str, Any]) -> Probabilities:
    ids = torch.tensor([prompt], device=model.device)
    logits_V = model(input_ids=ids, logits_to_keep=1, use_cache=False, **options).logits[0, -1]
    return tuple(torch.softmax(logits_V[list(labels)].float(), 0).tolist())


def probabilities(burst: Burst) -> list[Probabilities]:
    """Label probabilities of every answer of a battery."""
    return [of_scores(answer.scores) for answer in burst.answers]


def of_scores(scores: Sequence[float]) -> Probabilities:
    """Label probabilities of one answer, from its log probabilities up to a constant."""
    return tuple(torch.softmax(torch.tensor(scores), 0).tolist())


def difference(one: Probabilities, other: Probabilities) -> float:
    """Largest difference of a label's probability; 1, the most there can be, where one of them is no number."""
    if not all(map(math.isfinite, (*one, *other))):  # max() passes over NaN
        return 1.0
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def alike(one: Probabilities, other: Probabilities) -> bool:
    """Whether both name the same label. What is no number names none."""
    finite = all(map(math.isfinite, (*one, *other)))
    return finite and one.index(max(one)) == other.index(max(other))


def compare(
    prefix_ids: tuple[int, ...] | None,
    burst: Burst,
    wanted: Mapping[Key, Probabilities],
    against: str,
    moved: float | None,
) -> Agreement:
    """An arm's battery beside a reference, over the requests that the reference knows."""
    checked, same, worst = 0, 0, 0.0
    if prefix_ids is None:
        return Agreement(against, 0, 0, 0.0, moved)
    for piece, found in zip(burst.pieces, probabilities(burst), strict=True):
        right = wanted.get((prefix_ids, piece.place))
        if right is None:
            continue
        checked += 1
        same += alike(found, right)
        worst = max(worst, difference(found, right))
    return Agreement(against, checked, same, worst, moved)


def merge(one: Agreement, other: Agreement) -> Agreement:
    """Two comparisons with one reference as one."""
    worst = max((1.0 if math.isnan(each.worst) else each.worst) for each in (one, other))
    return Agreement(one.against, one.checked + other.checked, one.same + other.same, worst, one.moved)
