"""Label logits → calibrated probabilities → verdict. Training, evaluation and serving all end here, in pure Python."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from alora.errors import AdapterError, ConfigError
from alora.policy import Policy
from alora.prompt.parts import Truncation

TENTHS = 10  # bins of a histogram of probabilities
LEAST = 100  # rows on both sides; below, the population stability of equal distributions is often above 0.1
MOST_BIAS = 100.0  # nats; its exponential is a finite number
Dtype = Literal["float32", "bfloat16", "float64", "float16"]  # what a base computes in
NEVER = math.nextafter(1.0, math.inf)  # the highest threshold that calibration chooses


@dataclass(frozen=True)
class OperatingPoint:
    """The threshold, temperature and bias of an adapter's verdict, and how they were fitted.

    A verdict is positive where the probability, of ``softmax(logits / temperature + bias)``, is at least the threshold.
    The bias is of the positive label alone, and a threshold just above 1 never fires.

    ``threshold_low`` and ``threshold_high`` are the 95 % bootstrap interval of the choice. ``target`` says what it
    was chosen for (``evaluation.target``, or "none": uncalibrated, at one half), ``rows`` and ``positives`` on what.
    ``costs`` are those of a false positive and a false negative, where the target is cost. ``dtype`` and ``engine``
    say what computed the logits that it was fitted to; None: the base as the bundle was exported on it, in process.
    ``histogram`` counts the rows by :func:`tenth` of their probability; None in points of older versions.
    """

    temperature: float = 1.0
    threshold: float = 0.5
    threshold_low: float | None = None
    threshold_high: float | None = None
    target: str = "none"
    target_value: float | None = None
    rows: int = 0
    positives: int = 0
    costs: tuple[float, float] | None = None
    dtype: Dtype | None = None
    engine: str | None = None
    histogram: tuple[int, ...] | None = None
    bias: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"calibration temperature is {self.temperature}; it must be a positive number")
        if not abs(self.bias) <= MOST_BIAS:
            raise ConfigError(f"calibration bias is {self.bias}; it must be a number of at most {MOST_BIAS:g}")
        if not 0 <= self.threshold <= NEVER:
            raise ConfigError(f"verdict threshold is {self.threshold}; it must be a probability")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; newer fields that say nothing are left out."""
        content = asdict(self)
        for name in ("costs", "dtype", "engine", "histogram", "bias"):
            if content[name] in (None, 0.0):
                del content[name]
        return content


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

    @property
    def violated(self) -> bool:
        """Whether the positive label is the answer: ``probability >= threshold``."""
        return self.probability >= self.threshold

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types, in the order of the fields, and whether it is violated."""
        return asdict(self) | {"violated": self.violated}


@dataclass(frozen=True)
class Verdicts:
    """Every policy's verdict on one conversation, in the battery's order; ``verdicts["no_refunds"]`` is one of them.

    ``truncation`` says what the conversation lost to fit the prompt; None: nothing. ``windows`` are the parts that a
    long one was scored in, if its adapters were trained with ``prompt.truncation=windows``.
    """

    conversation: str
    verdicts: tuple[Verdict, ...]
    prefix_tokens: int
    truncation: Truncation | None = None
    windows: int = 1

    @property
    def violated(self) -> bool:
        return any(verdict.violated for verdict in self.verdicts)

    def __getitem__(self, policy: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.policy == policy:
                return verdict
        raise KeyError(f"no policy {policy!r} among {', '.join(verdict.policy for verdict in self)}")

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types: what ``alora score`` writes."""
        return {
            "conversation": self.conversation,
            "prefix_tokens": self.prefix_tokens,
            "truncation": None if self.truncation is None else asdict(self.truncation),
            **({"windows": self.windows} if self.windows > 1 else {}),
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
        }


def population_stability(before: Sequence[int] | None, after: Sequence[int]) -> float | None:
    """``sum((q - p) * ln(q / p))`` over bins, half a count added to each so that empty ones count; None where either
    side has fewer than :data:`LEAST` rows."""
    if before is None or min(sum(before), sum(after)) < LEAST:
        return None
    p_B, q_B = ([(count + 0.5) / (sum(counts) + 0.5 * len(counts)) for count in counts] for counts in (before, after))
    return math.fsum((q - p) * math.log(q / p) for p, q in zip(p_B, q_B, strict=True))


def tenth(probability: float) -> int:
    """The bin of a probability in a histogram of :data:`TENTHS` equal ones."""
    return min(int(probability * TENTHS), TENTHS - 1)


def label_probabilities(logits: Sequence[float], temperature: float = 1.0, bias: float = 0.0) -> list[float]:
    """``softmax(logits / temperature)`` over the label tokens' logits, in the order of the policy's labels; ``bias`` is
    added to the first one's. AdapterError where a logit is not finite, and there is no verdict to give."""
    values = [float(logit) for logit in logits]
    if not values or not all(math.isfinite(value) for value in values):
        raise AdapterError(f"label logits are {values}; the base or the adapter overflows: try base.dtype=float32")
    top = max(values)
    weights = [math.exp((value - top) / temperature) for value in values]
    weights[0] = math.exp((values[0] - top) / temperature + bias)
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def highest(logits_WL: Sequence[Sequence[float]]) -> Sequence[float]:
    """Of the logits of a conversation's windows, those by which the positive label is likeliest.

    Before the temperature, which is fitted to them: with three labels or more it may order windows otherwise.
    Logits that are not finite come first, so that no verdict is made without them.
    """

    def odds(logits: Sequence[float]) -> float:
        if len(logits) < 2 or not all(map(math.isfinite, logits)):
            return math.inf
        top = max(logits[1:])
        return logits[0] - top - math.log(math.fsum(math.exp(value - top) for value in logits[1:]))

    return max(logits_WL, key=odds)


def make_verdict(policy: Policy, logits: Sequence[float], point: OperatingPoint, adapter_digest: str) -> Verdict:
    """The verdict of ``policy`` from its label logits (one per label, in the policy's order); below the threshold the
    answer is the most probable of the other labels."""
    if len(logits) != len(policy.labels):
        raise AdapterError(f"policy {policy.id!r}: {len(logits)} label logits for {len(policy.labels)} labels")
    probabilities = label_probabilities(logits, point.temperature, point.bias)
    chosen = 0
    if probabilities[0] < point.threshold:
        chosen = max(range(1, len(probabilities)), key=probabilities.__getitem__)
    return Verdict(
        policy=policy.id,
        label=policy.labels[chosen],
        probability=probabilities[0],
        threshold=point.threshold,
        adapter_digest=adapter_digest,
        probabilities=dict(zip(policy.labels, probabilities, strict=True)),
    )
