"""Scoring N policies on one conversation: one packed pass against N standard-LoRA prefills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from alora.activation import peft_offset
from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.bench.arms import Work
from alora.bench.baselines import peft_model, put_adapter
from alora.bench.measure import Clock, Interval, Sample, Turn, by_round, measure, paired_ratio
from alora.bench.workload import INVOCATION, LABELS, Workload, pair_digest
from alora.prefix.scorer import Scorer
from alora.render import Prefix, Suffix


class ScorerArm:
    """Ours: :class:`~alora.prefix.scorer.Scorer`, one conversation and all adapters in one call."""

    def __init__(self, base: PreTrainedModel, adapters: Sequence[AdapterWeights], workload: Workload) -> None:
        self.name = f"packed N={len(adapters)}"
        nothing = Fingerprint("random", "none", "none")
        loaded = LoadedBase(base, cast(Any, None), nothing, "random")  # a scorer takes token ids
        self._scorer = Scorer(loaded, adapters)
        self._prefix = Prefix(workload.prefix_ids)
        self._suffixes = [Suffix(ids, INVOCATION, LABELS) for ids in workload.suffixes[: len(adapters)]]
        self.logits: list[torch.Tensor] = []
        self._given: list[dict[str, Any]] = []  # what the decoder got in the last step
        self._watch = base.get_decoder().register_forward_pre_hook(self._record, with_kwargs=True)
        self._stepping = False  # the base is shared with other arms

    def step(self) -> None:
        """Prefix and all suffixes; the answers lie on the CPU at the end."""
        self._given, self._stepping = [], True
        self.logits = self._scorer.label_logits(self._prefix, self._suffixes)
        self._stepping = False

    def _record(self, module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """A reference per pass, which no clock sees."""
        if self._stepping:
            self._given.append({name: given.get(name) for name in ("input_ids", "position_ids")})

    def work(self) -> list[Work]:
        """One entry per prompt that the decoder was given in the last step."""
        prefix: list[int] = []
        prompts: list[list[int]] = []
        for given in self._given:
            ids = given["input_ids"][0].tolist()
            if given["position_ids"] is None:
                prefix = ids
                continue
            for token, position in zip(ids, given["position_ids"][0].tolist(), strict=True):
                if position == len(prefix):
                    prompts.append(list(prefix))
                prompts[-1].append(token)
        return [Work(pair_digest(prompt, 0), len(prompt)) for prompt in prompts]

    def close(self) -> None:
        """Take the adapters and the watch off the base."""
        self._watch.remove()
        self._scorer.close()


class LoraArm:
    """N prefills by PEFT's standard LoRA: every adapter changes the KV from token 0 on, so nothing can be shared.

    The weights are exchanged between prefills outside the clock, which is kind to this arm.
    """

    def __init__(self, model: PeftModel, adapters: Sequence[AdapterWeights], workload: Workload, count: int) -> None:
        self.name, self._model, self._adapters = "lora", model, adapters[:count]
        self._ids = [torch.tensor([workload.prompt(place)], device=model.device) for place in range(count)]

    def turns(self) -> list[Turn]:
        """One turn per prefill."""
        return [
            Turn(self.name, lambda place=place: self._prefill(place), lambda place=place: self._put(place))
            for place in range(len(self._ids))
        ]

    def work(self) -> list[Work]:
        """One prompt per adapter."""
        return [Work(pair_digest(ids[0].tolist(), 0), ids.shape[1]) for ids in self._ids]

    def _put(self, place: int) -> None:
        put_adapter(self._model, self._adapters[place])

    def _prefill(self, place: int) -> list[float]:
        with torch.inference_mode():
            logits = self._model(input_ids=self._ids[place], logits_to_keep=1, use_cache=False).logits
        return logits[0, -1, list(LABELS)].tolist()


@dataclass(frozen=True)
class ScoringResult:
    """Samples of one scoring cell. ``ratios`` holds, per number of adapters, LoRA's seconds over ours."""

    samples: list[Sample]
    ratios: dict[int, Interval]
    seconds: dict[int, tuple[float, float]]  # ours, LoRA
    measured: int  # prefills of a round; LoRA at more adapters is that many times the mean prefill


def lora_model(base: PreTrainedModel, spec: AdapterSpec) -> PeftModel:
    """PEFT's standard LoRA of the shape of ``spec``."""
    model = peft_model(base, AdapterSpec(spec.rank, spec.alpha, spec.targets, None))
    model.eval()
    return model


@torch.inference_mode()
def worst_logit_difference(arm: ScorerArm, model: PeftModel, adapters: Sequence[AdapterWeights], workload: Workload):
    """Largest relative difference between ours and PEFT's full-sequence aLoRA, first and last adapter."""
    arm.step()
    worst = 0.0
    for place in sorted({0, len(arm.logits) - 1}):
        put_adapter(model, adapters[place])
        prompt = workload.prompt(place)
        ids = torch.tensor([prompt], device=model.device)
        offsets = [peft_offset(len(prompt), len(workload.prefix_ids))]
        wanted = model(input_ids=ids, logits_to_keep=1, use_cache=False, alora_offsets=offsets).logits[0, -1]
        wanted_L = wanted[list(LABELS)].float().cpu()
        worst = max(worst, ((arm.logits[place].float() - wanted_L).norm() / wanted_L.norm()).item())
    return worst


def time_scoring(
    arms: Sequence[tuple[int, ScorerArm]], lora: LoraArm, rounds: int, seed: int, clock: Clock, done: Any
) -> ScoringResult:
    """Interleave every packed pass and every prefill; LoRA's seconds for N adapters are N prefills.

    A prefill costs the same whatever the adapter, so up to ``measured`` prefills are timed in a round, and more
    adapters are extrapolated from their mean.
    """
    prefills = lora.turns()
    samples = measure([*(Turn(arm.name, arm.step) for _, arm in arms), *prefills], rounds, seed, clock, done)
    each = [
        sum(s.seconds for s in samples if s.arm == lora.name and s.round == number) / len(prefills)
        for number in range(rounds)
    ]
    ratios, seconds = {}, {}
    for count, arm in arms:
        ours = by_round(samples, arm.name)
        ratio = paired_ratio([count * value for value in each], ours)
        ratios[count] = ratio
        seconds[count] = (sorted(ours)[len(ours) // 2], count * sorted(each)[len(each) // 2])
    return ScoringResult(samples, ratios, seconds, len(prefills))
