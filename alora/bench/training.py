"""``alora bench training``: packed training against two full-sequence trainers, on equal pairs or without a ratio."""

import gc
import math
from collections.abc import Mapping

from alora.bench import guards
from alora.bench.guards import Code, refuse
from alora.bench.harness import Benchmark, Context
from alora.bench.material import LABELS, adapter_spec, bench_base, random_adapter
from alora.bench.reference import peft_model
from alora.bench.roofline import FlopCount
from alora.bench.trainers import TRAINERS, PackedTrainer, PeftTrainer, difference, draw_batch, over_vocabulary, piece_of
from alora.bench.trials import AA, Agreement, Cell, Objection, Result, Run
from alora.training.examples import Batch

UNLIKE = 1e9  # what a record holds for an infinite difference, which JSON does not have


class TrainingBench(Benchmark):
    """The cells are prefix lengths. ``_worst``: relative difference of a baseline to ours; ``_untrained``: policies of
    ours without a gradient; both by cell and system.
    """

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self.base = base = bench_base(settings, context.base, context.device, context.dtype)
        self.tolerance = guards.GRADIENT_TOLERANCE[guards.half(context.dtype)]
        self.engine = dict[str, str]()
        self._context, self._settings = context, settings
        policies, self._spec = range(max(settings.policies)), adapter_spec(settings, base.shape)
        self._adapters = [random_adapter(self._spec, base.model, settings.seed + 10 * policy) for policy in policies]
        self._count = FlopCount(base.shape, settings.rank, self._spec.targets)
        self._worst: dict[tuple[str, str], float] = {}
        self._untrained: dict[tuple[str, str], list[int]] = {}

    def measure(self) -> None:
        for prefix in self._settings.prefixes:
            self._cell(prefix)

    def _batch(self, prefix: int, policies: int) -> Batch:
        settings, base = self._settings, self.base
        return draw_batch(base.shape.vocab, prefix, settings.suffix, policies, settings.seed, base.banned)

    def _packed(self, batch: Batch) -> PackedTrainer:
        return PackedTrainer(self.base.model, self._adapters[: len(batch.pairs)], batch, self._context.scratch)

    def _cell(self, prefix: int) -> None:
        """Make the trainers, compare what they compute, and time them interleaved with an A/A run."""
        settings, counts = self._settings, sorted(self._settings.policies)
        ours = {f"packed P={policies}": self._packed(self._batch(prefix, policies)) for policies in counts}
        cell = Cell("training", {"prefix": prefix, "suffix": settings.suffix}, list(ours))
        own = self._adapters[0], self._batch(prefix, counts[-1]), self._context.scratch
        baselines = {name: TRAINERS[name](peft_model(self.base.model, self._spec), *own) for name in settings.baselines}
        self._compare(cell, ours, baselines, sorted({0, counts[-1] - 1}))
        systems = {**ours, **baselines, AA: ours[cell.ours[0]]}
        turns = {name: lambda number, one=one: [self._timed(one)] for name, one in systems.items()}
        self._context.harness.measure(turns, [cell], len(settings.prefixes))
        for one in ours.values():
            one.close()
        gc.collect()

    def _timed(self, trainer: PackedTrainer | PeftTrainer) -> Run:
        """One step from cleared gradients, and the pairs that it ran."""
        trainer.clear()
        _, seconds, wall = self._context.clock.time(trainer.step)
        shared = trainer.shared_tokens  # computed once, and counted for the first
        pieces = enumerate(trainer.pieces())
        return Run.of(seconds, wall, [Result(piece, 0.0, shared if number else 0) for number, piece in pieces])

    def _compare(
        self, cell: Cell, ours: Mapping[str, PackedTrainer], baselines: Mapping[str, PeftTrainer], checked: list[int]
    ) -> None:
        """Worst relative difference of each baseline's gradients to ours.

        ``peft`` is compared for the first and the last policy, with every number of policies that holds them. ``trl``
        trains against the whole vocabulary, so it is compared with ours doing the same for the first policy. Of the
        policies between, each packed trainer notes which got no gradient.
        """
        outcomes = []
        for name, one in ours.items():
            found, self._untrained[cell.name, name] = one.outcomes([p for p in checked if p < len(one.batch.pairs)])
            outcomes.append(found)
        for name, baseline in baselines.items():
            if name == "peft":
                references = []
                for policy in reversed(checked):  # the first is what is timed
                    baseline.train_policy(self._adapters[policy], policy)
                    references.insert(0, baseline.outcome())
                pairs = [pair for found in outcomes for pair in zip(found, references, strict=False)]
            else:
                wide = self._packed(over_vocabulary(self._batch(cell.size("prefix"), 1), self.base.shape.vocab))
                pairs = [(wide.outcomes([0])[0][0], baseline.outcome())]
                wide.close()
            self._worst[cell.name, name] = max(difference(mine, theirs) for mine, theirs in pairs)

    def faults(self, cell: Cell, system: str) -> list[Objection]:
        """Other gradients, pairs that a timed step left out, policies that were not trained."""
        if (worst := self._worst.get((cell.name, system))) is not None:
            text = f"gradients of {system} and ours differ by {worst:.1e} (rounding explains {self.tolerance:.0e})"
            return refuse(Code.UNEQUAL_GRADIENTS, text, not worst <= self.tolerance)
        policies, missing = policies_of(system), self._untrained[cell.name, system]
        batch = self._batch(cell.size("prefix"), policies)
        wanted = {piece_of(batch.prefixes, *pair) for pair in zip(batch.pairs, batch.labels, strict=True)}
        ran = min(len(wanted & set(trial.run.work)) for trial in cell.of(system))
        left_out = refuse(Code.UNEQUAL_WORK, f"ours ran {ran} of its {policies} pairs", ran < policies)
        return left_out + refuse(Code.NO_GRADIENT, f"policies {missing} of ours got no finite gradient", missing)

    def roofline(self, cell: Cell, system: str) -> float:
        """FLOPs of a step over the machine's best rate."""
        return self._flops(cell, cell.ours[0] if system == AA else system) / self._context.machine.flops

    def _flops(self, cell: Cell, system: str) -> float:
        prefix, suffix = cell.size("prefix"), cell.size("suffix")
        if system in self._settings.baselines:
            return self._count.full_sequence(prefix, suffix)
        policies = policies_of(system)
        return policies * self._count.packed(prefix, suffix, len(LABELS), policies)

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
