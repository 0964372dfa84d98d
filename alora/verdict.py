"""Label logits → calibrated probabilities → verdict."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Operating point of one adapter: ``softmax(logits / temperature)``, positive when its probability >= threshold."""

    temperature: float = 1.0
    threshold: float = 0.5


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
