"""What all workloads of one run share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tqdm.auto import tqdm

from alora.bench.serving.arms import Arm, VllmArm
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.engine import BenchEngine
from alora.bench.serving.material import Material
from alora.bench.serving.plan import lora_places, rounds
from alora.bench.serving.records import Burst, Cell, Verdict
from alora.bench.serving.reference import References
from alora.bench.serving.rounds import Turn, rotating_part, run_rounds
from alora.config.schema import BenchSettings


class TimeIsUp(Exception):
    """The run has lasted as long as it may; what is finished is reported."""


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
    underway: list[Cell] = field(default_factory=list)  # the stages that are measured just now
    deadline: float | None = None  # of time.perf_counter()

    def conversation(self, tokens: int, seed: int = 0) -> tuple[int, ...]:
        """Prefix ids; the same for every arm and round. A longer conversation begins with a shorter one."""
        return self.material.conversation(tokens, self.settings.seed + 1000 + seed)

    def names(self, without: Sequence[str] = ()) -> list[str]:
        """Arms of a workload."""
        return [name for name in self.arms if name not in without]

    def part(self, arm: str, places: Sequence[int], length: int, number: int) -> list[int]:
        """Which policies ``arm`` runs in a round: all, or for standard LoRA as many as ``lora_tokens`` allow."""
        if arm != "lora":
            return list(places)
        return rotating_part(places, lora_places(self.settings.serving, len(places), length), number)

    def rounds(self, cells: int) -> int:
        """Rounds of a workload that compares arms in ``cells`` cells."""
        return rounds(self.settings, cells)

    def scale(self, arm: str, places: Sequence[int], length: int) -> float:
        """Whole battery over part."""
        return len(places) / len(self.part(arm, places, length, 0))

    def ready(self, arms: Sequence[str], places: Sequence[int]) -> None:
        """Adapters into their slots, so that none is loaded while the clock runs."""
        served = [arm for name in arms if isinstance(arm := self.arms[name], VllmArm)]
        for arm in {arm.kind: arm for arm in served}.values():  # ours and the null arm are of one kind
            arm.load(places)

    def measure(self, turns: Sequence[Turn], stages: Sequence[Cell], rounds: int) -> None:
        """Time ``turns`` and put what they find into ``stages``, and these among the cells."""
        self.underway = list(stages)
        self.in_time()
        run_rounds(turns, stages, rounds, self.settings.seed, self.done)
        self.cells += stages
        self.underway = []

    def keep_whole_rounds(self) -> None:
        """Of what is measured just now, the rounds in which every arm has run; two of them at least make a cell."""
        trials = [trial for cell in self.underway for trial in cell.trials]
        ran = Counter(trial.round for trial in trials)
        arms = {trial.arm for trial in trials}
        whole = {number for number, count in ran.items() if count == len(arms) * len(self.underway)}
        if len(whole) < 2:
            return
        for cell in self.underway:
            cell.trials = [trial for trial in cell.trials if trial.round in whole]
        self.cells += self.underway
        self.underway = []

    def done(self, burst: Burst) -> None:
        """Move the bar on by the prompt tokens of a burst, and stop where the time is up."""
        tokens = burst.computed_tokens
        self.bar.total = max(self.bar.total or 0, self.bar.n + tokens)  # a plan that fell short does not end the bar
        self.bar.update(tokens)
        self.in_time()

    def in_time(self) -> None:
        """Go on.

        Raises:
            TimeIsUp: ``bench.serving.limit_s`` seconds have passed since the run began.
        """
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise TimeIsUp(f"the limit of {self.settings.serving.limit_s:g} s was reached (bench.serving.limit_s)")
