"""What must hold before a ratio is printed: equal work, equal results, and a null arm that shows no difference.

Each guard returns a reason to refuse, or None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from alora.bench.measure import Interval

if TYPE_CHECKING:
    from alora.bench.arms import Outcome, Work

TOLERANCE = 1e-4  # relative, float32: two orders of summation over thousands of tokens
WIDEST_NULL = 2.0  # high over low of the null arm's interval
HALF_TOLERANCE = 0.1  # bfloat16 has 8 bits; a gradient is a sum of many such products


def tolerance_of(dtype: torch.dtype) -> float:
    """Relative difference that rounding alone explains."""
    return HALF_TOLERANCE if dtype in (torch.bfloat16, torch.float16) else TOLERANCE


def unequal_work(ours: Sequence[Work], baseline: Sequence[Work]) -> str | None:
    """The baseline's pairs must be among ours, token for token, no pair twice, and all prompts of one length.

    Seconds per pair can then be compared although ours runs P pairs and a baseline one: every pair costs it the same.
    """
    for name, work in (("ours", ours), ("the baseline", baseline)):
        if not work:
            return f"{name} ran no pair"
        if len({item.digest for item in work}) != len(work):
            return f"{name} counts a pair twice"
    lengths = {item.tokens for item in ours}
    if lengths != {item.tokens for item in baseline} or len(lengths) != 1:
        other = sorted({item.tokens for item in baseline})
        return f"the prompts differ in length: ours {sorted(lengths)} tokens, the baseline {other}"
    foreign = {item.digest for item in baseline} - {item.digest for item in ours}
    if foreign:
        return f"the baseline ran {len(foreign)} pair(s) that ours did not (other tokens or another answer)"
    return None


def disagreement(ours: Outcome, reference: Outcome) -> float:
    """Largest relative difference of the loss and of each gradient matrix; infinite where they cannot be compared."""
    if ours.digest != reference.digest or ours.objective != reference.objective:
        return float("inf")
    if not reference.gradients or ours.gradients.keys() != reference.gradients.keys():
        return float("inf")
    differences = [abs(ours.loss - reference.loss) / max(abs(reference.loss), 1e-12)]
    for name, theirs in reference.gradients.items():
        for mine, wanted in zip(ours.gradients[name], theirs, strict=True):
            norm = wanted.norm().item()
            difference = (mine.to(wanted.dtype) - wanted).norm().item()
            differences.append(difference / norm if norm > 0 else float("inf"))
    return max(differences) if all(map(math.isfinite, differences)) else float("inf")  # max() passes over NaN


def unequal_results(worst: float, tolerance: float) -> str | None:
    """Loss and gradients of the arms must agree on the very workload that is timed."""
    if worst <= tolerance:
        return None
    return f"loss or gradients differ by {worst:.1e}, more than rounding explains ({tolerance:.0e})"


def biased_null(ratio: Interval, arm: str = "ours") -> str | None:
    """``arm`` against itself must show 1.0 within its interval, and the interval must not hold whatever one likes."""
    if ratio.contains(1.0) and ratio.high <= WIDEST_NULL * ratio.low:
        return None
    if ratio.contains(1.0):
        return (
            f"the null arm, {arm} against itself, shows [{ratio.low:.3f}, {ratio.high:.3f}], which is too wide to say "
            "anything: the machine is too noisy; run it again when it is quiet, or with a higher bench.rounds"
        )
    return (
        f"the null arm, {arm} against itself, shows {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] in place of "
        "1.0: the order or the machine disturbs the measurement; run it again when the machine is quiet"
    )
