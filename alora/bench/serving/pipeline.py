"""``pipeline``: base, then adapter, then base again, as in Li et al. 2025 (arXiv:2512.17910).

The base answers, an adapter judges the answer, and the base goes on behind the judgement. With standard LoRA the second
stage computes everything anew; with aLoRA every stage finds what the stages before it left.
"""

from __future__ import annotations

from alora.bench.serving.context import Bench
from alora.bench.serving.records import Ask, Burst, Cell
from alora.bench.serving.rounds import Turn

STAGES = ("base", "adapter", "base again")


def run_pipeline(bench: Bench) -> None:
    """One cell per stage, for standard LoRA and aLoRA."""
    serving = bench.settings.serving
    bench.bar.set_description("pipeline")
    names = bench.names(without=("packed", "base"))
    at = {"length": serving.pipeline_length, "tokens": serving.pipeline_tokens}
    stages = [Cell("pipeline", {**at, "stage": stage}) for stage in STAGES]
    bench.ready(names, [0])
    turns = [_pipeline(bench, name) for name in names]
    bench.measure(turns, stages, bench.rounds(1))


def _pipeline(bench: Bench, name: str) -> Turn:
    serving, material, engine = bench.settings.serving, bench.material, bench.engine
    assert engine is not None
    asked, made = bench.conversation(serving.pipeline_length), serving.pipeline_tokens
    kind = "lora" if name == "lora" else "alora"

    def run(number: int) -> list[Burst]:
        engine.forget()
        first = engine.answer([Ask(asked, None, 0, (), made)])
        said = asked + first.answers[0].output_ids
        judged = engine.answer([Ask(said + material.suffixes[0], kind, 0, material.labels[0])])
        # The judgement is written out with the policy's text, so both arms' bases read the same tokens.
        then = engine.answer([Ask(said + material.policy_texts[0], None, 0, (), made)])
        return [first, judged, then]

    return Turn(name, run)
