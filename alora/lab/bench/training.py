"""``alora bench training``: packed training against full-sequence trainers, on equal pairs or without a ratio.

- ``training``: every one of :data:`~alora.lab.bench.trainers.BATCH` conversations is labelled for all P policies.
- ``own_rows``: every conversation is labelled for one of eight policies alone, as most users have them; a step holds
  ``bench.own_rows`` of each, as one of ``alora train`` does.

What counts is the ratio over the fastest of PEFT's four (:data:`~alora.lab.bench.trials.FULL_SEQUENCE`).
"""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from peft import PeftModel
from transformers import PreTrainedModel

from alora.adapter.folder import AdapterWeights
from alora.lab.bench import objections
from alora.lab.bench.harness import Benchmark, Context
from alora.lab.bench.material import (
    LABELS,
    adapter_spec,
    as_lora,
    bench_base,
    draw_batch,
    over_vocabulary,
    piece_of,
    random_adapter,
    some_pairs,
    whole_prompts,
)
from alora.lab.bench.objections import refuse
from alora.lab.bench.reference import peft_model
from alora.lab.bench.roofline import FAMILIES, FlopCount, launches_a_layer, tiny_ids
from alora.lab.bench.trainers import BATCH, PEFT, Gradients, PackedTrainer, PeftTrainer, TrlTrainer, difference
from alora.lab.bench.trials import AA, TRAINING, Agreement, Cell, Launches, Objection, Result, Run
from alora.training.examples import Batch

UNLIKE = 1e9  # what a record holds for an infinite difference, which JSON does not have
OWN = TRAINING[1]
OWN_POLICIES = 8


class TrainingBench(Benchmark):
    """The cells are prefix lengths. ``_worst``: relative difference of a baseline to ours; ``_untrained``: policies of
    ours without a gradient; both by cell and system."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self.base = base = bench_base(settings, context.base, context.device, context.dtype)
        self.tolerance = objections.GRADIENT_TOLERANCE[objections.half(context.dtype)]
        self.engine = dict[str, str]()
        self._context, self._settings = context, settings
        policies, self._spec = range(max(settings.policies)), adapter_spec(settings, base.shape)
        self._adapters = [random_adapter(self._spec, base.model, settings.seed + 10 * policy) for policy in policies]
        self._count = FlopCount(base.shape, settings.rank, self._spec.targets)
        self._worst: dict[tuple[str, str], float] = {}
        self._untrained: dict[tuple[str, str], list[int]] = {}

    def measure(self) -> None:
        for workload in TRAINING if self._settings.own_rows else TRAINING[:1]:
            for prefix in self._settings.prefixes:
                self._cell(workload, prefix)

    def _batch(self, workload: str, prefix: int, policies: int) -> Batch:
        settings, base, own = self._settings, self.base, workload == OWN
        conversations = settings.own_rows * policies if own else BATCH
        sizes = base.shape.vocab, prefix, settings.suffix, policies, settings.seed
        return draw_batch(*sizes, base.banned, conversations, own)

    def _cell(self, workload: str, prefix: int) -> None:
        """Make the trainers, compare what they compute, and time them interleaved with an A/A run."""
        settings, counts = self._settings, sorted(self._settings.policies)
        counts = [min(OWN_POLICIES, counts[-1])] if workload == OWN else counts
        batches = {policies: self._batch(workload, prefix, policies) for policies in counts}
        ours, baselines = self._systems(batches, settings.baselines)
        at: dict[str, int | str] = {"prefix": prefix, "suffix": settings.suffix, "conversations": BATCH}
        if workload == OWN:
            at |= {"policies": counts[0], "conversations": len(batches[counts[0]].prefixes)}
        cell = Cell(workload, at, list(ours), launches=self._launches(workload, counts))
        self._compare(cell, ours, baselines, sorted({0, counts[-1] - 1}))
        systems = {**ours, **baselines, AA: ours[cell.ours[0]]}
        turns = {name: lambda number, one=one: [self._timed(one)] for name, one in systems.items()}
        self._context.harness.measure(turns, [cell], len(settings.prefixes))
        for one in ours.values():
            one.close()
        gc.collect()

    def _systems(
        self, batches: Mapping[int, Batch], baselines: Sequence[str], model: PreTrainedModel | None = None
    ) -> tuple[dict[str, PackedTrainer], dict[str, PeftTrainer]]:
        """A packed trainer for each number of policies, and the baselines; on the measured base, or on ``model``."""
        adapters, scratch = self._adapters, self._context.scratch
        if model is None:
            model = self.base.model
        else:
            adapters = [random_adapter(self._spec, model, policy) for policy in range(max(batches))]
        ours = {f"packed P={n}": PackedTrainer(model, adapters[:n], batch, scratch) for n, batch in batches.items()}
        found, models = dict[str, PeftTrainer](), dict[bool, PeftModel]()
        largest = batches[max(batches)]
        for name in baselines:
            if name == "trl":  # which patches its model
                one = peft_model(model, self._spec)
                found[name] = TrlTrainer(one, adapters[0], some_pairs(largest, [0]), scratch)
                continue
            activated, rows = PEFT[name]
            adapter = adapters[0] if activated else as_lora(adapters[0])
            if activated not in models:
                models[activated] = peft_model(model, adapter.spec)
            found[name] = PeftTrainer(models[activated], adapter, largest, scratch, rows=rows)
        return ours, found

    def _launches(self, workload: str, counts: Sequence[int]) -> dict[str, Launches]:
        """Of a layer, by system; of a base without quantization, of a family that the benchmark can draw."""
        settings, family = self._settings, self.base.shape.family
        if family not in FAMILIES or self._context.base.quantization:
            return {}

        def step_on(base: PreTrainedModel, policies: int, baselines: Sequence[str]) -> Callable[[], None]:
            drawn = self._batch(workload, 64, policies)
            pairs = tuple(replace(pair, suffix_ids=tiny_ids(pair.suffix_ids)) for pair in drawn.pairs)
            batch = replace(drawn, prefixes=tuple(map(tiny_ids, drawn.prefixes)), pairs=pairs)
            ours, others = self._systems({policies: batch}, baselines, base)
            (one,) = others.values() if baselines else ours.values()

            def step() -> None:
                one.clear()
                one.step()

            return step

        asked = [(f"packed P={policies}", policies, ()) for policies in counts]
        asked += [(name, counts[-1], (name,)) for name in settings.baselines if name in PEFT]
        return {
            name: launches_a_layer(lambda base, n=policies, one=one: step_on(base, n, one), family)
            for name, policies, one in asked
        }

    def _timed(self, trainer: PackedTrainer | PeftTrainer) -> Run:
        """One step from cleared gradients, and the pairs that it ran."""
        trainer.clear()
        _, seconds, wall = self._context.clock.time(trainer.step)
        return Run.of(seconds, wall, list(map(Result, trainer.pieces(), repeat(0.0), trainer.shared())))

    def _compare(
        self, cell: Cell, ours: Mapping[str, PackedTrainer], baselines: Mapping[str, PeftTrainer], checked: list[int]
    ) -> None:
        """Worst relative difference of each baseline's gradients to ours.

        PEFT's aLoRA is compared for the first and the last policy, with every number of policies that holds them.
        Others are compared for the first policy with ours doing the same: LoRA with whole prompts as suffixes, ``trl``
        with the whole vocabulary. Of the policies between, each packed trainer notes which got no gradient.
        """
        outcomes = []
        for name, one in ours.items():
            found, self._untrained[cell.name, name] = one.outcomes([p for p in checked if p < policies_of(name)])
            outcomes.append(found)
        batch = list(ours.values())[-1].batch
        for name, baseline in baselines.items():
            if name == "trl":
                wide = over_vocabulary(some_pairs(batch, [0]), self.base.shape.vocab)
                pairs = [(self._first(self._adapters[0], wide), baseline.outcome())]
            elif PEFT[name][0]:
                references = []
                for policy in reversed(checked):  # the first is what is timed
                    baseline.train_policy(self._adapters[policy], policy)
                    references.insert(0, baseline.outcome())
                pairs = [pair for found in outcomes for pair in zip(found, references, strict=False)]
            else:
                pairs = [(self._first(as_lora(self._adapters[0]), whole_prompts(batch, 0)), baseline.outcome())]
            self._worst[cell.name, name] = max(difference(mine, theirs) for mine, theirs in pairs)

    def _first(self, adapter: AdapterWeights, batch: Batch) -> Gradients:
        """Gradients of the one policy of ``batch``, by ours."""
        trainer = PackedTrainer(self.base.model, [adapter], batch, self._context.scratch)
        (found,), _ = trainer.outcomes([0])
        trainer.close()
        return found

    def faults(self, cell: Cell, system: str) -> list[Objection]:
        """Other gradients, pairs that a timed step left out, policies that were not trained."""
        if (worst := self._worst.get((cell.name, system))) is not None:
            text = f"gradients of {system} and ours differ by {worst:.1e} (rounding explains {self.tolerance:.0e})"
            return refuse("UNEQUAL_GRADIENTS", text, not worst <= self.tolerance)
        missing = self._untrained[cell.name, system]
        batch = self._batch(cell.workload, cell.size("prefix"), policies_of(system))
        wanted = {piece_of(batch.prefixes, *pair) for pair in zip(batch.pairs, batch.labels, strict=True)}
        ran = min(len(wanted & set(trial.run.work)) for trial in cell.of(system))
        left_out = refuse("UNEQUAL_WORK", f"ours ran {ran} of its {len(wanted)} pairs", ran < len(wanted))
        return left_out + refuse("NO_GRADIENT", f"policies {missing} of ours got no finite gradient", missing)

    def roofline(self, cell: Cell, system: str) -> float:
        """FLOPs of a step over the machine's best rate."""
        prefix, suffix, system = cell.size("prefix"), cell.size("suffix"), cell.ours[0] if system == AA else system
        if system in self._settings.baselines:
            before = prefix if PEFT.get(system, (True, 1))[0] else 0  # a standard LoRA is on from token 0
            flops: float = self._count.full_sequence(before, prefix + suffix - before)
        else:
            sharing = 1 if cell.workload == OWN else policies_of(system)
            flops = self._count.packed(prefix, suffix, len(LABELS), sharing)
        return cell.of(system)[0].run.pieces * flops / self._context.machine.flops

    def agreement(self, cell: Cell, system: str) -> list[Agreement]:
        """Of gradients, as far as a record shows them: the worst relative difference."""
        worst = self._worst.get((cell.name, system))
        if worst is None:
            return []
        shown = worst if math.isfinite(worst) else UNLIKE
        return [Agreement(system, "ours, gradients", 1, int(worst <= self.tolerance), shown)]


def policies_of(system: str) -> int:
    """P of a packed system."""
    return int(system.partition("=")[2])
