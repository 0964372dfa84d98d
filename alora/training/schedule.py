"""Defaults from a training's rows and rank (learning rate, epochs, batch); and whether the training ended too early.

Epochs and batch were chosen in a pilot on SmolLM2-135M at rank 16. The learning rate falls as one over the width of the
base's hidden state, through what two bases bear at rank 16 on 136 rows of a policy, one seed each: SmolLM2-135M (576
wide, float32, two policies) has mean AUROC 0.873, 0.917 and 0.917 at 3e-4, 8e-4 and 2e-3; Qwen2.5-Coder-0.5B (896 wide,
bfloat16, groundedness) has 0.931, 0.900 and 0.844, and at 2e-3 two policies of two end at chance. Wider bases are not
measured, and no narrower one gets a higher rate. How the rate scales with the rank is argued, not measured: a step of
Adam moves every element equally far, so the product of A and B grows with the root of the rank. Rows shown are counted
per policy, because a policy's adapter sees only its own rows, whatever else is in the battery.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from alora.config.schema import TrainingSettings
from alora.training.examples import Example

ROWS_SHOWN = 1200  # of one policy, over all epochs
LEAST_EPOCHS, MOST_EPOCHS = 2, 20
RATE, RATE_RANK, RATE_WIDTH = 1.2e-3, 16, 576
STILL_IMPROVING = 0.02  # of the validation loss, in the last evaluation: more rows shown would help
NOTHING_LEFT = 0.002  # nats; below, the rows are learnt


History = Sequence[Mapping[str, float | None]]  # log entries of the trainer


@dataclass(frozen=True)
class Schedule:
    """Settings with nothing left open, and how many conversations make one step."""

    settings: TrainingSettings
    conversations: int  # of one step, before accumulation
    steps_per_epoch: int
    steps: int
    interval: int  # steps from one evaluation to the next

    @property
    def warmup_steps(self) -> int:
        """Steps before the full rate. The first of them has rate 0, so one step at least comes after them."""
        return min(math.ceil(self.settings.warmup_ratio * self.steps), self.steps - 1)


def make_schedule(settings: TrainingSettings, train: Sequence[Example], rank: int, width: int = RATE_WIDTH) -> Schedule:
    """The schedule of a training on ``train``, of adapters of a ``rank`` on a base whose hidden state has ``width``.

    ``batch_size`` counts rows of one policy. Where rows are labelled for one policy each, a step of P policies holds P
    times as many conversations; where every row is labelled for all, it holds ``batch_size`` of them.
    """
    rows = Counter(target.policy for example in train for target in example.targets)
    targets, policies = sum(rows.values()), len(rows)
    conversations = min(len(train), max(1, round(settings.batch_size * policies * len(train) / max(1, targets))))
    epochs = settings.epochs
    if epochs is None:
        epochs = min(MOST_EPOCHS, max(LEAST_EPOCHS, math.ceil(ROWS_SHOWN * policies / max(1, targets))))
    rate = settings.learning_rate
    if rate is None:
        rate = RATE * min(1.0, RATE_WIDTH / width) * math.sqrt(RATE_RANK / rank)
    steps_per_epoch = math.ceil(len(train) / (conversations * settings.gradient_accumulation_steps))
    steps = settings.max_steps if settings.max_steps > 0 else math.ceil(steps_per_epoch * epochs)
    interval = max(1, min(steps, steps_per_epoch // max(1, settings.evaluations_per_epoch)))
    settled = replace(settings, epochs=float(epochs), learning_rate=rate)
    return Schedule(settled, conversations, steps_per_epoch, steps, interval)


def width_of(model: PreTrainedModel) -> int:
    """The width of a base's hidden state."""
    return int(model.config.get_text_config().hidden_size)


def loss_curves(history: History, policy: int, policies: int) -> dict[str, list[tuple[float, float]]]:
    """A policy's training and validation losses, each with its step."""
    suffix = "" if policies == 1 else f"_{policy}"
    keys = {"training": f"loss{suffix}", "validation": f"eval_loss{suffix}"}
    return {
        name: [
            (step, loss) for entry in history if (loss := entry.get(key)) is not None and (step := entry.get("step"))
        ]
        for name, key in keys.items()
    }


def still_improving(curve: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The last two validation losses of a ``curve`` by step, if the last one still improved on all before it by a share
    of :data:`STILL_IMPROVING` and by :data:`NOTHING_LEFT` nats; None otherwise."""
    losses = [loss for _, loss in curve]
    if len(losses) < 2:
        return None
    best = min(losses[:-1])
    if best - losses[-1] < max(STILL_IMPROVING * best, NOTHING_LEFT):
        return None
    return losses[-2], losses[-1]


def unfinished(curve: Sequence[tuple[float, float]], settings: Mapping[str, Any]) -> str | None:
    """What to say of a training that was :func:`still_improving`, by its ``settings``; None of any other."""
    if (last := still_improving(curve)) is None:
        return None
    key = "max_steps" if settings["max_steps"] > 0 else "epochs"
    return (
        f"was still improving when training ended (validation loss {last[0]:.3f}, then {last[1]:.3f}); raise "
        f"training.{key}, which was {settings[key]:g}"
    )
