"""What each system should answer, by PEFT and transformers on the whole prompt, and how far it is from that."""

import copy
import gc
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from transformers import PreTrainedModel

from alora.activation import peft_offset
from alora.adapter.folder import AdapterSpec, peft_config
from alora.lab.bench.material import Material
from alora.lab.bench.trials import READS_TEXT, Agreement, Cell, Result, SampledAnswer
from alora.training.trl_engine import put_adapter

SAMPLED = 3  # requests of a system and cell: the first computes the prefix, the others find it in the cache
NAMES = {"alora": "PEFT's aLoRA", "lora": "PEFT's LoRA", "base": "transformers"}
Probabilities = tuple[float, ...]
Key = tuple[tuple[int, ...], int]  # prefix ids and policy


def peft_model(base: PreTrainedModel, spec: AdapterSpec) -> PeftModel:
    """A copy of ``base`` with the stock attention under PEFT."""
    copied = copy.deepcopy(base)
    copied.set_attn_implementation("sdpa")
    model = get_peft_model(copied, peft_config(spec))
    assert isinstance(model, PeftModel)
    return model


def last_logits(model: Any, prompt: tuple[int, ...], **options: Any) -> torch.Tensor:
    """Logits ``[V]`` behind a prompt, on the CPU."""
    ids_BT = torch.tensor([prompt], device=model.device)
    return model(input_ids=ids_BT, logits_to_keep=1, use_cache=False, **options).logits[0, -1].float().cpu()


class PeftModels:
    """Policies as aLoRA and LoRA in PEFT, one at a time; every other spec gets a new copy of the base."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._model: Any = None
        self._spec: AdapterSpec | None = None

    def model(self, kind: str, policy: int) -> Any:
        """The base under the policy's adapter as ``kind`` (alora, lora), or the base itself (base)."""
        if kind == "base":
            return self._material.base.model
        adapter = self._material.adapters[policy] if kind == "alora" else self._material.twin(policy)
        if adapter.spec != self._spec:
            self._model, self._spec = None, adapter.spec
            gc.collect()  # the last copy of the base, before there is another
            self._model = peft_model(self._material.base.model, adapter.spec).eval()
        put_adapter(self._model, adapter)
        return self._model


@dataclass(frozen=True)
class References:
    """Right probabilities of sampled requests, by reference; ``moved``: by how much its adapters move the base."""

    answers: Mapping[str, Mapping[Key, Probabilities]] = field(default_factory=dict)
    moved: Mapping[str, float] = field(default_factory=dict)

    def judge(self, system: str, results: Iterable[tuple[Key, Result]]) -> Agreement:
        """A system's answers next to their reference, as far as that was asked."""
        name = reference_of(system)
        known, moved = self.answers.get(name, {}), None if name == "base" else self.moved.get(name, 0.0)
        asked = [(key, of(one), known[key]) for key, one in results if key in known]
        found = agreement(system, NAMES[name], [(one, right) for _, one, right in asked], moved)

        def finite(probabilities: Probabilities) -> Probabilities:  # JSON has no NaN
            return probabilities if all(map(math.isfinite, probabilities)) else ()

        answers = [SampledAnswer(policy, len(ids), finite(one), finite(right)) for (ids, policy), one, right in asked]
        return replace(found, answers=answers)


def reference_of(system: str) -> str:
    """Whose answers a system should give: the A/A run and the packed scorer run aLoRAs too."""
    return "base" if system in READS_TEXT else "lora" if system == "lora" else "alora"


def sampled(cell: Cell, prefix: tuple[int, ...]) -> list[tuple[str, Key]]:
    """Requests to ask the references about: the first, middle and last that a system ran, each of another round."""
    wanted, last = [], SAMPLED - 1
    for name in cell.systems if cell.ours else ():
        trials = cell.of(name)
        for number in range(SAMPLED):
            policies = sorted(piece.policy for piece in trials[number * (len(trials) - 1) // last].run.work)
            if policies:
                wanted.append((reference_of(name), (prefix, policies[number * (len(policies) - 1) // last])))
    return wanted


@torch.inference_mode()
def ask_references(material: Material, wanted: Iterable[tuple[str, Key]]) -> References:
    """Full-sequence answers to every wanted request."""
    answers: dict[str, dict[Key, Probabilities]] = {name: {} for name in NAMES}
    gaps: dict[str, dict[int, float]] = {"alora": {}, "lora": {}}
    models = PeftModels(material)
    for name, (prefix, policy) in sorted(set(wanted), key=lambda one: (one[0], one[1][1], len(one[1][0]))):
        prompt, labels = material.prompt(name, prefix, policy), material.suffixes[policy].label_token_ids
        options = {"alora_offsets": [peft_offset(len(prompt), len(prefix))]} if name == "alora" else {}
        answer = _ask(models.model(name, policy), prompt, labels, **options)
        answers[name][prefix, policy] = answer
        if name != "base" and policy not in gaps[name]:
            gaps[name][policy] = gap(answer, _ask(material.base.model, prompt, labels))
    return References(answers, {name: fmean(own.values()) if own else 0.0 for name, own in gaps.items()})


def _ask(model: Any, prompt: tuple[int, ...], labels: Sequence[int], **options: Any) -> Probabilities:
    return tuple(torch.softmax(last_logits(model, prompt, **options)[list(labels)], 0).tolist())


def of(result: Result) -> Probabilities:
    """Label probabilities of one answer, from its log probabilities up to a constant."""
    return tuple(torch.softmax(torch.tensor(result.scores), 0).tolist())


def gap(one: Probabilities, other: Probabilities) -> float:
    """Largest difference of a label's probability; 1 where one is not a number or is of other labels."""
    if len(one) != len(other) or not all(map(math.isfinite, (*one, *other))):  # max() passes over NaN
        return 1.0
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=1.0)


def agreement(
    system: str, against: str, pairs: Sequence[tuple[Probabilities, Probabilities]], moved: float | None = None
) -> Agreement:  # fmt: skip
    """Answers next to the right ones. What is not a number names no label."""
    gaps = [gap(one, other) for one, other in pairs]
    same = sum(found < 1 and a.index(max(a)) == b.index(max(b)) for found, (a, b) in zip(gaps, pairs, strict=True))
    return Agreement(system, against, len(pairs), same, max(gaps, default=0.0), moved)


def steadiness(system: str, results: Iterable[tuple[Key, Result]]) -> list[Agreement]:
    """A system's answers compared with its own first ones to the same requests, where any was sent again."""
    pairs, first = [], dict[Key, Result]()
    for key, result in results:
        before = first.setdefault(key, result)
        if before is not result:
            pairs.append((of(result), of(before)))
    return [agreement(system, system, pairs)] if pairs else []
