"""What must hold before a serving ratio is printed. Each guard returns a reason to refuse, or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from alora.bench import guards
from alora.bench.measure import Interval
from alora.bench.serving.records import Piece, Trial
from alora.bench.serving.reference import Agreement

TOLERANCE = 1e-3  # of a label's probability in float32: two engines, other kernels
HALF_TOLERANCE = 0.02  # bfloat16 has 8 bits
MOVED = 2  # times the tolerance: what adapters must change on average, so that one left out would be told
NULL_COVERAGE = 0.99  # so that the null arm cries wolf once in a hundred runs
LARGEST_BLOCK = 32  # tokens that the cache keeps or loses together: on CPU; 16 on a GPU
FLOOR_MARGIN = 0.8  # rates are measured too, on other shapes than the model's
NULL_PAIRS = 8  # the fewest whose extremes cover that: three pairs would cry wolf in every fourth run


def tolerance_of(dtype: torch.dtype) -> float:
    """Difference of a probability that rounding alone explains."""
    return HALF_TOLERANCE if dtype in (torch.bfloat16, torch.float16) else TOLERANCE


def unequal_work(ours: Sequence[Trial], theirs: Sequence[Trial]) -> str | None:
    """Both arms must have run the same prompts for the same policies, with as much output.

    An arm that runs a part of the battery in each round must run a part of ours, prompts of one length, and be scaled
    by exactly what it left out.
    """
    for name, trials in (("ours", ours), ("the baseline", theirs)):
        if not trials or not all(trial.burst.pieces for trial in trials):
            return f"{name} answered nothing"
        if any(len(set(trial.burst.pieces)) != len(trial.burst.pieces) for trial in trials):
            return f"{name} counts a request twice"
    whole = set(ours[0].burst.pieces)
    if any(set(trial.burst.pieces) != whole for trial in ours):
        return "ours did not run the same requests in every round"
    for trial in theirs:
        reason = _part_of(whole, trial)
        if reason:
            return reason
    return None


def _part_of(whole: set[Piece], trial: Trial) -> str | None:
    part = set(trial.burst.pieces)
    mine, other = _sizes(whole), _sizes(part)
    if part - whole:
        if mine != other:
            return f"the prompts differ: ours {mine}, the baseline {other} (tokens in, tokens out)"
        return f"the baseline ran {len(part - whole)} request(s) that ours did not (other tokens or another policy)"
    if len(part) < len(whole) and len(mine) > 1:
        return "the baseline ran a part of the battery, and prompts differ in length, so its whole cannot be told"
    if abs(trial.scale - len(whole) / len(part)) > 1e-9:
        return f"{len(part)} of {len(whole)} requests were run, but counted {trial.scale:g} times"
    return None


def _sizes(pieces: set[Piece]) -> list[tuple[int, int]]:
    return sorted({(piece.prompt_tokens, piece.output_tokens) for piece in pieces})


def wrong_verdicts(agreement: Agreement | None, tolerance: float) -> str | None:
    """An arm must answer as its reference does, and the reference's adapters must matter."""
    if agreement is None:
        return "its verdicts were not compared with any reference"
    if agreement.checked == 0:
        return f"no verdict was compared with {agreement.against}"
    if agreement.moved is not None and agreement.moved <= MOVED * tolerance:
        return (
            f"the adapters change a probability by {agreement.moved:.1e} on average, so equal verdicts would prove "
            "nothing"
        )
    if not agreement.worst <= tolerance:  # NaN too
        return (
            f"{agreement.checked - agreement.same} of {agreement.checked} verdicts differ from {agreement.against}, "
            f"probabilities by up to {agreement.worst:.1e} (rounding explains {tolerance:.0e})"
        )
    return None


def unsteady_verdicts(worst: float, tolerance: float) -> str | None:
    """An arm must answer alike in every round."""
    return None if worst <= tolerance else f"its own verdicts change from round to round by up to {worst:.1e}"


def not_cold(trials: Sequence[Trial], shared_tokens: int) -> str | None:
    """On an empty cache, nothing but the battery's own prefix may be hit, and by none but the later requests."""
    for trial in trials:
        answers = trial.burst.answers
        most = max((answer.cached_tokens for answer in answers), default=0)
        free = sum(answer.cached_tokens == 0 for answer in answers)
        if most > shared_tokens or free == 0:
            return f"the cache was not empty: a request hit {most} tokens of {shared_tokens} that its battery shares"
    return None


def emptied(trials: Sequence[Trial], left: int) -> str | None:
    """What the stage before has left in the cache must still be there, or an arm starts anew that need not."""
    least = left // LARGEST_BLOCK * LARGEST_BLOCK
    short = sum(answer.cached_tokens < least for trial in trials for answer in trial.burst.answers)
    if not short:
        return None
    return (
        f"{short} request(s) did not find the {least} tokens or more that the stage before left in the cache: it was "
        "emptied in between, or is too small (bench.serving.kv_gib on CPU, gpu_share on a GPU)"
    )


def missing_rounds(ours: Sequence[Trial], theirs: Sequence[Trial], name: str) -> str | None:
    """Ratios are taken round by round, so both must have run every one of them, once."""
    mine, other = (sorted(trial.round for trial in trials) for trials in (ours, theirs))
    if mine == other and len(set(mine)) == len(mine):
        return None
    return f"{name} was measured in rounds {other}, ours in {mine}: rounds are missing, so none can be paired"


def starved(slots: int, adapters: int) -> str | None:
    """Every adapter that is compared needs a slot of its own, or a baseline would wait for weights."""
    if slots >= adapters:
        return None
    return f"{adapters} adapters share {slots} slots, so some wait for their weights; give the engine more"


def below_floor(arm: str, times_the_floor: float | None) -> str | None:
    """Nothing is faster than its own arithmetic: an arm that seems to be has left work out, or its floor is wrong."""
    if times_the_floor is None or times_the_floor >= FLOOR_MARGIN:
        return None
    return (
        f"{arm} took {times_the_floor:.2f} times what its arithmetic and bytes take at this machine's best rates: it "
        "left work out, or the floor is miscounted"
    )


def biased_null(ratio: Interval, rounds: int) -> str | None:
    """aLoRA against itself must show 1.0 within its interval."""
    reason = guards.biased_null(ratio, "aLoRA")
    return f"{reason} (an interval from {rounds} rounds, which covers {ratio.coverage:.1%})" if reason else None


def different_runs(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Settings in which two runs differ, so that their figures cannot be compared."""
    keys = sorted({*one, *other})
    return [f"{key}: {one.get(key)!r} and {other.get(key)!r}" for key in keys if one.get(key) != other.get(key)]
