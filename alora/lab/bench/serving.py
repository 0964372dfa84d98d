"""``alora bench serving``: many policies on one conversation, by systems on one engine in one run.

``docs/serving_benchmark.md`` has the workloads. The stages of ``warm``: the base reads the conversation, as the guarded
chat model would have (*read*), the burst right after (*warm*), and once more (*again*).
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from alora.config.schema import BenchSettings
from alora.errors import ConfigError
from alora.lab.bench import objections
from alora.lab.bench.harness import REHEARSAL, Benchmark, Context
from alora.lab.bench.material import Material, bench_base, bundle_material, random_material
from alora.lab.bench.open_loop import Load, fired_adapters, run_open_loop
from alora.lab.bench.record import LoadRecord
from alora.lab.bench.reference import Key, References, agreement, ask_references, of, reference_of, sampled, steadiness
from alora.lab.bench.roofline import Roofline
from alora.lab.bench.systems import BenchEngine, PackedScorer, PeftLora, Request, System, VllmSystem
from alora.lab.bench.trials import AA, Agreement, Cell, Objection, Result, Run

NEEDS_ENGINE = ("warm", "open_loop")
WARM_TOKENS, TURN_POLICIES = 500, 10  # at most: every system runs all of them, since a cache is no use to a part
CHECKS = {"alora": ("packed", "the packed scorer"), "guard": ("alora", "P requests")}  # ours against all answers of it
LORA_STEPS = 2  # of the engine that a rehearsal of standard LoRA fills; all further ones are alike
Step = Callable[[str, int], Run]  # of a stage: from a system and the number of the round


class ServingBench(Benchmark):
    """Systems on one engine (None: the packed scorer and PEFT's LoRA in this process)."""

    def __init__(self, context: Context) -> None:
        self._settings = settings = for_this_machine(context.settings)
        self._context, self._harness = context, context.harness
        if settings.serving.engine == "vllm" and context.device.type == "cpu" and torch.cuda.is_available():
            raise ConfigError("base.device=cpu, but vLLM would take the GPU here; hide it: CUDA_VISIBLE_DEVICES=''")
        self._engine: BenchEngine | None = None
        self.engine = {"name": "scorer"}
        self.ours = self._start()
        self.base = self.material.base
        self.tolerance = objections.VERDICT_TOLERANCE[objections.half(self.base.model.dtype)]
        self.systems[AA] = self.systems[self.ours]
        self._loads, self._references = list[Load](), References()

    def _start(self) -> str:
        """Set up the material, the engine and the systems; which of these is ours."""
        settings, names = self._settings, list(self._settings.serving.systems)
        self.material = make_material(self._context, settings)
        if settings.serving.engine == "vllm":
            self._engine = BenchEngine(settings, self.material, self._context.clock)
            self.engine = self._engine.facts()
            if "reader" in names and (reason := self._engine.missing_reader()):
                self.engine["no reader"] = reason
                names.remove("reader")
        self.systems: dict[str, System] = {name: self._system(name) for name in names}
        return "alora" if "alora" in names else "packed"

    def _system(self, name: str) -> System:
        if name == "packed":
            return PackedScorer(self.material, self._context.clock)
        if self._engine is None:
            return PeftLora(self.material, self._context.clock)
        return VllmSystem(name, self._engine, self.material)

    def measure(self) -> None:
        for name in self._settings.serving.workloads:
            getattr(self, f"_{name}")()

    def conversation(self, tokens: int, seed: int = 0) -> tuple[int, ...]:
        return self.material.conversation(tokens, self._settings.seed + 1000 + seed)

    def _measure(self, stages: Sequence[Cell], steps: Sequence[Step], cells: int) -> None:
        """Every system from an empty cache on, which is kept from stage to stage; all adapters are in their slots."""

        def turn(name: str, number: int) -> list[Run]:
            self.systems[name].forget()
            return [step(name, number) for step in steps]

        for system in self.systems.values():
            system.load(range(stages[-1].size("policies")))
        turns = {name: partial(turn, name) for name in stages[-1].kept or self.systems}
        self._harness.measure(turns, stages, cells)

    def _grid(self) -> None:
        self._bursts("grid", self._settings.prefixes)

    def _bursts(self, workload: str, lengths: Sequence[int]) -> None:
        cells = [(tokens, count) for tokens in lengths for count in self._settings.policies]
        for tokens, count in cells:
            cell = Cell(workload, {"tokens": tokens, "policies": count}, [self.ours])
            self._measure([cell], [partial(self._cold, self.conversation(tokens), count)], len(cells))

    def _cold(self, prefix: tuple[int, ...], count: int, name: str, number: int) -> Run:
        """A burst. Standard LoRA runs as many policies as ``lora_tokens`` allow, others in each round."""
        serving, first, size = self._settings.serving, 0, count
        if name == "lora":
            size = min(count, max(1, (serving.lora_tokens or count * len(prefix)) // len(prefix)))
            first = number * size
            if number == REHEARSAL:
                first, size = 0, min(size, LORA_STEPS * serving.step_tokens // len(prefix) + 1)
        return self.systems[name].run(prefix, [policy % count for policy in range(first, first + size)])

    def _warm(self) -> None:
        assert self._engine is not None
        engine, tokens = self._engine, min(WARM_TOKENS, self._settings.prefixes[0])
        policies, prefix = range(max(self._settings.policies)), self.conversation(tokens)
        names = [name for name, system in self.systems.items() if system.keeps]
        reading = Request(prefix, "base", 0, self.material.suffixes[0].label_token_ids)
        at, burst = {"tokens": tokens, "policies": len(policies)}, partial(self._burst, prefix, policies)
        stages = [
            Cell("warm", {**at, "stage": "read"}),
            # the base's cache is of no use to standard LoRA, which is adapted from token 0
            Cell("warm", {**at, "stage": "warm"}, [self.ours], {n: 0 if n == "lora" else tokens for n in names}),
            Cell("warm", {**at, "stage": "again"}, [self.ours], dict.fromkeys(names, tokens)),
        ]
        self._measure(stages, [lambda name, number: engine.answer([reading]), burst, burst], 2)

    def _conversation(self) -> None:
        count, longest = self._settings.serving.turns, self._settings.prefixes[0]
        policies, whole = range(min(TURN_POLICIES, max(self._settings.policies))), self.conversation(longest)
        lengths, stages = [longest * turn // count for turn in range(count + 1)], []
        for turn in range(1, count + 1):
            kept = {name: lengths[turn - 1] if system.keeps else 0 for name, system in self.systems.items()}
            at: dict[str, int | str] = {"turn": turn, "tokens": lengths[turn], "policies": len(policies)}
            stages.append(Cell("conversation", at, [self.ours], kept))
        self._measure(stages, [partial(self._burst, whole[:tokens], policies) for tokens in lengths[1:]], 1)

    def _burst(self, prefix: tuple[int, ...], policies: Sequence[int], name: str, number: int) -> Run:
        return self.systems[name].run(prefix, policies)

    def _open_loop(self) -> None:
        run_open_loop(self._settings, self.systems, self.conversation, self._context, self._loads)

    def load(self) -> list[LoadRecord]:
        return [one.judged(self._references, self.tolerance) for one in self._loads]

    def ask(self) -> None:
        """Ask the references about requests of every cell and rate that really ran."""
        wanted = [one for cell in self._harness.cells for one in sampled(cell, self.conversation(cell.size("tokens")))]
        wanted += [(reference_of(load.record.system), key) for load in self._loads for key in load.asked]
        self._references = ask_references(self.material, wanted)

    def faults(self, cell: Cell, system: str) -> list[Objection]:
        """Verdicts that differ, a cache that was not as empty or as full as it should be."""
        own = [one for one in cell.agreement if one.system == system]
        refused = [one for entry in own for one in objections.unequal_verdicts(entry, self.tolerance)]
        if not self.systems[system].keeps:
            return refused
        kept = cell.kept.get(system, 0)
        if cell.workload == "warm":  # which begins with a stage in which the base reads
            read = next(c for c in self._harness.cells if c.at == {**cell.at, "stage": "read"})
            refused += objections.warm_cache(read.of(system), 0, system)
        elif not kept:
            refused += objections.warm_cache(cell.of(system), 0 if system == "lora" else cell.size("tokens"), system)
        return refused + objections.emptied_cache(cell.of(system), kept, system)

    def roofline(self, cell: Cell, system: str) -> float:
        count, again = cell.of(system)[0].run.pieces, cell.at.get("stage") == "again"
        line = Roofline(self.material, self._context.machine)
        return line.seconds(system, cell.size("tokens"), count, cell.kept.get(system, 0), again)

    def agreement(self, cell: Cell, system: str) -> list[Agreement]:
        """With PEFT for sampled requests, with the packed scorer for all, and with its own other rounds."""
        prefix = self.conversation(cell.size("tokens"))

        def keyed(name: str) -> list[tuple[Key, Result]]:
            return [((prefix, one.piece.policy), one) for trial in cell.of(name) for one in trial.run.results]

        found = [self._references.judge(system, keyed(system))]
        other, named = CHECKS.get(self.ours, ("", ""))
        if system in (self.ours, AA) and other in cell.systems:
            right = {key: of(result) for key, result in keyed(other)}
            pairs = [(of(result), right[key]) for key, result in keyed(system) if key in right]
            found.append(agreement(system, named, pairs))
        return found + steadiness(system, keyed(system))


def for_this_machine(settings: BenchSettings) -> BenchSettings:
    """The same settings with the engine decided, and without what it cannot run."""
    serving, engine = settings.serving, settings.serving.engine
    if engine == "auto":
        engine = "vllm" if importlib.util.find_spec("vllm") is not None else "scorer"
    workloads, systems = list(serving.workloads), list(serving.systems)
    if engine == "scorer":
        workloads = [name for name in workloads if name not in NEEDS_ENGINE]
        systems = [name for name in systems if name in ("lora", "packed")]
    if not {"alora", "packed"} & set(systems):
        raise ConfigError(
            f"bench.serving.systems={list(serving.systems)} leaves {systems or 'nothing'} on "
            f"bench.serving.engine={engine}, and nothing of ours to compare with; add packed, or alora with vLLM"
        )
    if not workloads:
        raise ConfigError(f"bench.serving.workloads={list(serving.workloads)} all need vLLM; install it or add grid")
    return replace(settings, serving=replace(serving, engine=engine, workloads=workloads, systems=systems))


def make_material(context: Context, settings: BenchSettings) -> Material:
    needed = max(settings.policies)
    if "open_loop" in settings.serving.workloads:
        needed = max(needed, fired_adapters(settings))
    if settings.battery is None:
        base = bench_base(settings, context.base, context.device, context.dtype)
        return random_material(settings, base, needed, context.scratch)
    material = bundle_material(settings, context.base, context.scratch)
    if needed > len(material.adapters):
        raise ConfigError(
            f"bench.battery={settings.battery} holds {len(material.adapters)} bundles, and the workloads ask for "
            f"{needed}; lower bench.policies and bench.serving.populations, or leave workloads out"
        )
    return material
