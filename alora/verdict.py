"""Label logits → calibrated probabilities → verdict. Training, evaluation and serving all end here, in pure Python."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alora.errors import AdapterError, ConfigError
from alora.policy import Policy

NEVER = math.nextafter(1.0, math.inf)  # the highest threshold that calibration chooses


@dataclass(frozen=True)
class Calibration:
    """Operating point of one adapter: ``softmax(logits / temperature)``, positive when its probability >= threshold.

    Raises:
        ConfigError: the temperature is not a positive number, or the threshold is not between 0 and 1. The number
            just above 1 is meant: it never fires.
    """

    temperature: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"calibration temperature is {self.temperature}; it must be a positive number")
        if not 0 <= self.threshold <= NEVER:
            raise ConfigError(f"verdict threshold is {self.threshold}; it must be a probability")


@dataclass(frozen=True)
class Verdict:
    """The answer of one policy on one conversation.

    ``probability`` is the calibrated probability of the policy's positive label; ``label`` follows from it and
    ``threshold``. ``adapter_digest`` names the weights that answered.
    """

    policy: str
    label: str
    probability: float
    threshold: float
    adapter_digest: str
    probabilities: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types, in the order of the fields."""
        return asdict(self)


def label_probabilities(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """``softmax(logits / temperature)`` over the label tokens' logits, in the order of the policy's labels.

    Raises:
        AdapterError: a logit is not finite: the base or the adapter overflowed, and there is no verdict to give.
    """
    values = [float(logit) for logit in logits]
    if not values or not all(math.isfinite(value) for value in values):
        raise AdapterError(f"label logits are {values}; the base or the adapter overflows: try base.dtype=float32")
    top = max(values)
    weights = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def make_verdict(policy: Policy, logits: Sequence[float], calibration: Calibration, adapter_digest: str) -> Verdict:
    """The verdict of ``policy`` from its label logits (one per label, in the policy's order).

    Below the threshold the answer is the most probable of the other labels.

    Raises:
        AdapterError: the number of logits is not the number of labels, or one is not finite.
    """
    if len(logits) != len(policy.labels):
        raise AdapterError(f"policy {policy.id!r}: {len(logits)} label logits for {len(policy.labels)} labels")
    probabilities = label_probabilities(logits, calibration.temperature)
    chosen = 0
    if probabilities[0] < calibration.threshold:
        chosen = max(range(1, len(probabilities)), key=probabilities.__getitem__)
    return Verdict(
        policy=policy.id,
        label=policy.labels[chosen],
        probability=probabilities[0],
        threshold=calibration.threshold,
        adapter_digest=adapter_digest,
        probabilities=dict(zip(policy.labels, probabilities, strict=True)),
    )
