"""A bundle that is made again on another quantization of its base: its golden rows' answers there, beside the stored.

Two quantizations are two functions, so answers differ and no tolerance is asked of them. How far, and how many verdicts
turn, is what whoever serves the bundle there must be able to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from alora.bundle.golden import GoldenRow, largest_difference, measure, normalised
from alora.bundle.manifest import MoveRecord
from alora.errors import BundleError
from alora.evaluation.calibration import positive_probability
from alora.verdict import OperatingPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from alora.base.load import LoadedBase
    from alora.bundle.read import Bundle


def is_move(bundle: Bundle, base: LoadedBase) -> bool:
    """Whether ``base`` is the bundle's but for its quantization, or for the settings of that."""
    differing = set(bundle.manifest.base.fingerprint.differences(base.fingerprint))
    return bool(differing) and differing <= {"quantization", "quantization_settings"}


def require_movable(bundle: Bundle, base: LoadedBase) -> None:
    """Refuse a bundle that could not be compared with itself on ``base``.

    Raises:
        BundleError: it stores no golden rows, or prompts are rendered in another way than it was made with.
    """
    if not bundle.golden:
        raise BundleError(
            f"{bundle.folder} stores no golden rows, so nobody can say how its answers change on a base in "
            f"{base.fingerprint.quantization}; export it again with export.golden_rows=8"
        )
    bundle.check_prompts(base)


def parity_run(bundle: Bundle, base: LoadedBase, point: OperatingPoint) -> MoveRecord:
    """Ask the adapter on ``base`` for the bundle's golden rows; ``point`` is the one fitted there.

    Raises:
        BundleError: see :func:`require_movable`.
        DataError: a logit is not finite.
    """
    from alora.prefix.scorer import Scorer

    require_movable(bundle, base)
    talks = [row.conversation for row in bundle.golden]
    with Scorer(base, [bundle.weights]) as scorer:
        here = measure(scorer, bundle.renderer(base), bundle.suffix, talks)
    before, after = _fired(bundle.golden, bundle.manifest.operating_point), _fired(here, point)
    return MoveRecord(
        quantization=bundle.manifest.base.fingerprint.quantization,
        dtype=bundle.manifest.base.dtype,
        rows=len(here),
        same_verdict=sum(one == other for one, other in zip(before, after, strict=True)),
        largest_difference=largest_difference(normalised(bundle.golden), normalised(here)),
    )


def _fired(rows: Sequence[GoldenRow], point: OperatingPoint) -> list[bool]:
    logits_NL = np.array([row.label_logits for row in rows], dtype=np.float64)
    return (positive_probability(logits_NL, point.temperature) >= point.threshold).tolist()
