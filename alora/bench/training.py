"""``alora bench training``: packed training against three full-sequence trainers, on equal pairs or without a ratio."""

import gc
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from alora.bench import guards
from alora.bench.baselines import TRAINERS, PeftTrainer, peft_model
from alora.bench.flops import FlopCount
from alora.bench.guards import Code, refuse
from alora.bench.harness import Clock, Context, Harness
from alora.bench.material import LABELS, adapter_spec, bench_base, random_adapter
from alora.bench.memory import extra_peak_mib, in_fresh_process
from alora.bench.packed import PackedTrainer, TrainingPrompts, difference
from alora.bench.record import LoadRecord, MemoryRow
from alora.bench.trials import AA, Agreement, Cell, Refusal, Result, Run
from alora.config.schema import BaseSettings, BenchSettings, TrainingSettings

PASS_TOKENS = TrainingSettings().max_suffix_tokens  # of a packed pass
UNLIKE = 1e9  # what a record holds for an infinite difference, which JSON does not have


class TrainingBench:
    """The cells are prefix lengths. ``_worst``: relative difference of a baseline to ours; ``_untrained``: policies of
    ours without a gradient; both by cell and system.
    """

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self.base = bench_base(settings, context.base, context.device, context.dtype)
        self._spec, self._context, self._settings = adapter_spec(settings, self.base.shape), context, settings
        self._adapters = [
            random_adapter(self._spec, self.base.model, settings.seed + 10 * policy)
            for policy in range(max(settings.policies))
        ]
        self.tolerance = guards.GRADIENT_TOLERANCE[guards.half(context.dtype)]
        self._count = FlopCount(self.base.shape, settings.rank, self._spec.targets)
        self._worst: dict[tuple[str, str], float] = {}
        self._untrained: dict[tuple[str, str], list[int]] = {}
        self.engine, self.memory = dict[str, str](), list[MemoryRow]()

    def measure(self) -> None:
        for prefix in self._settings.prefixes:
            self._cell(prefix)
        if self._settings.memory:
            context = self._context
            self.memory = in_fresh_process(step_memory, self._settings, context.base, context.device, context.dtype)

    def ask(self) -> None:
        """Gradients were compared before a clock was read."""

    def load(self) -> list[LoadRecord]:
        return []

    def _prompts(self, prefix: int, policies: int) -> TrainingPrompts:
        settings, base = self._settings, self.base
        return TrainingPrompts.draw(base.shape.vocab, prefix, settings.suffix, policies, settings.seed, base.banned)

    def _packed(self, prompts: TrainingPrompts, tokens: int = PASS_TOKENS, vocabulary: bool = False) -> PackedTrainer:
        adapters = self._adapters[: len(prompts.suffixes)]
        return PackedTrainer(self.base.model, adapters, prompts, self._context.scratch, tokens, vocabulary)

    def _cell(self, prefix: int) -> None:
        """Make the trainers, compare what they compute, and time them interleaved with an A/A run."""
        settings, counts = self._settings, sorted(self._settings.policies)
        ours = {f"packed P={policies}": self._packed(self._prompts(prefix, policies)) for policies in counts}
        cell = Cell("training", {"prefix": prefix, "suffix": settings.suffix}, list(ours))
        own = self._adapters[0], self._prompts(prefix, counts[-1]), self._context.scratch
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
        seconds, wall = self._context.clock.time(trainer.step)
        shared = trainer.shared_tokens  # computed once, and counted for the first
        pieces = enumerate(trainer.pieces())
        return Run.of(seconds, wall, [Result(piece, 0.0, shared if number else 0) for number, piece in pieces])

    def _compare(
        self, cell: Cell, ours: Mapping[str, PackedTrainer], baselines: Mapping[str, PeftTrainer], checked: list[int]
    ) -> None:
        """Worst relative difference of each baseline to ours.

        ``peft`` is compared for the first and the last policy, with every number of policies that holds them. The other
        two train against the whole vocabulary, so they are compared with ours doing the same for the first policy. Of
        the policies between, each packed trainer notes which got no gradient.
        """
        outcomes = []
        for name, one in ours.items():
            found, self._untrained[cell.name, name] = one.outcomes([p for p in checked if p < one.policies])
            outcomes.append(found)
        for name, baseline in baselines.items():
            if baseline.objective == "labels":
                references = []
                for policy in reversed(checked):  # the first is what is timed
                    baseline.train_policy(self._adapters[policy], policy)
                    references.insert(0, baseline.outcome())
                pairs = [pair for found in outcomes for pair in zip(found, references, strict=False)]
            else:
                wide = self._packed(self._prompts(cell.size("prefix"), 1), vocabulary=True)
                pairs = [(wide.outcomes([0])[0][0], baseline.outcome())]
                wide.close()
            self._worst[cell.name, name] = max(difference(mine, theirs) for mine, theirs in pairs)

    def peak_memory(self, prefix: int) -> list[MemoryRow]:
        """PEFT, the packed step alone, and few and many policies in passes of one size: memory follows the pass."""
        most = max(self._settings.policies)
        few = min(8, most)
        model = peft_model(self.base.model, self._spec)
        small, whole = (
            PeftTrainer(model, self._adapters[0], self._prompts(length, 1), self._context.scratch)
            for length in (16, prefix)
        )
        rows = [MemoryRow("peft", 1, PASS_TOKENS, extra_peak_mib(small, whole, self._context.device))]
        del model, small, whole
        short = few * self._settings.suffix
        for policies, tokens in ((1, PASS_TOKENS), (most, PASS_TOKENS), (few, short), (most, short)):
            gc.collect()
            first = self._packed(self._prompts(16, policies), tokens)
            peak = extra_peak_mib(first, first.on(self._prompts(prefix, policies)), self._context.device)
            rows.append(MemoryRow("packed", policies, tokens, peak))
            first.close()
        return rows

    def faults(self, cell: Cell, system: str) -> list[Refusal]:
        """Other gradients, pairs that a timed step left out, policies that were not trained."""
        if system in self._settings.baselines:
            return guards.unequal_gradients(self._worst[cell.name, system], self.tolerance, system)
        policies, missing = policies_of(system), self._untrained[cell.name, system]
        wanted = set(map(self._prompts(cell.size("prefix"), policies).piece, range(policies)))
        ran = min(len(wanted & set(trial.run.work)) for trial in cell.of(system))
        left_out = refuse(Code.UNEQUAL_WORK, f"ours ran {ran} of its {policies} pairs", ran < policies)
        return left_out + refuse(Code.NO_GRADIENT, f"policies {missing} of ours got no finite gradient", missing)

    def roofline(self, cell: Cell, system: str) -> float:
        """FLOPs of a step over the machine's best rate."""
        return self._flops(cell, cell.ours[0] if system == AA else system) / self._context.machine.flops

    def _flops(self, cell: Cell, system: str) -> float:
        prefix, suffix = cell.size("prefix"), cell.size("suffix")
        if system in self._settings.baselines:
            return self._count.full_sequence(prefix, suffix, prefix + suffix + 1 if system == "trainer" else 1)
        policies = policies_of(system)
        return policies * self._count.packed(prefix, suffix, len(LABELS), policies)

    def limit(self, cell: Cell, baseline: str) -> float:
        return self._flops(cell, baseline) / self._count.suffix(cell.size("prefix"), cell.size("suffix"), len(LABELS))

    def agreement(self, cell: Cell, system: str) -> list[Agreement]:
        """Of gradients, as far as a record shows them: the worst relative difference."""
        worst = self._worst.get((cell.name, system))
        if worst is None:
            return []
        shown = worst if math.isfinite(worst) else UNLIKE
        return [Agreement(system, "ours, gradients", 1, int(worst <= self.tolerance), shown)]


def step_memory(
    settings: BenchSettings, base: BaseSettings, device: torch.device, dtype: torch.dtype
) -> list[MemoryRow]:  # fmt: skip
    """Peak memory of steps in this process, which should be a fresh one."""
    torch.set_num_threads(settings.threads)
    with tempfile.TemporaryDirectory() as scratch:
        clock, harness = Clock(device, settings.threads), Harness(settings)
        bench = TrainingBench(Context(settings, base, device, dtype, Path(scratch), clock, harness))
        return bench.peak_memory(settings.prefixes[0])


def policies_of(system: str) -> int:
    return int(system.partition("=")[2])
