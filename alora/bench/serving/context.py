"""What all workloads of one run share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tqdm.auto import tqdm

from alora.bench.serving.arms import NULL, Arm
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.engine import BenchEngine
from alora.bench.serving.material import Material
from alora.bench.serving.plan import lora_places, rounds
from alora.bench.serving.records import Cell, Trial, Verdict
from alora.bench.serving.reference import References
from alora.bench.serving.rounds import rotating_part
from alora.config.schema import BenchSettings


@dataclass
class Bench:
    """Settings, material, the arms of the run and the engine behind them (None: the scorer alone)."""

    settings: BenchSettings
    material: Material
    arms: dict[str, Arm]
    engine: BenchEngine | None
    clock: BenchClock
    references: References
    tolerance: float
    bar: tqdm
    cells: list[Cell] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    readied: set[tuple[str, int]] = field(default_factory=set)

    def conversation(self, tokens: int, seed: int = 0) -> tuple[int, ...]:
        """Prefix ids; the same for every arm and round. A longer conversation begins with a shorter one."""
        return self.material.conversation(tokens, self.settings.seed + 1000 + seed)

    def names(self, without: Sequence[str] = ()) -> list[str]:
        """Arms of a workload."""
        return [name for name in self.arms if name not in without]

    def part(self, arm: str, places: Sequence[int], length: int, number: int) -> list[int]:
        """Which policies ``arm`` runs in a round: all, or for standard LoRA as many as ``lora_tokens`` allow."""
        serving = self.settings.serving
        if arm != "lora" or serving.lora_tokens is None:
            return list(places)
        return rotating_part(places, lora_places(serving, len(places), length), number)

    def rounds(self, cells: int) -> int:
        """Rounds of a workload that compares arms in ``cells`` cells."""
        return rounds(self.settings, cells)

    def scale(self, arm: str, places: Sequence[int], length: int) -> float:
        """Whole battery over part."""
        return len(places) / len(self.part(arm, places, length, 0))

    def ready(self, arms: Sequence[str], places: Sequence[int]) -> None:
        """Adapters into their slots, and one short battery of each arm, so that nothing is done for the first time.

        What an arm has answered already is not asked again, but for the two that say that it still can.
        """
        prefix = self.conversation(64, seed=-1)
        for arm in arms:
            if self.engine is not None and arm in ("lora", "alora", NULL):
                self.engine.load("lora" if arm == "lora" else "alora", places)
            new = [place for place in places if (arm, place) not in self.readied]
            some = arm == "lora" or (arm != "packed" and len(new) <= 2)  # the packed arm packs these very policies
            first = [*new, *(place for place in places if place not in new)][:2]
            self.arms[arm].run(prefix, first if some else places)
            self.readied.update((arm, place) for place in places)

    def done(self, trial: Trial) -> None:
        """Move the bar on by the prompt tokens of a trial."""
        tokens = trial.burst.computed_tokens
        self.bar.total = max(self.bar.total or 0, self.bar.n + tokens)  # a plan that fell short does not end the bar
        self.bar.update(tokens)
