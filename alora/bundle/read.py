"""Open bundles with their weights, for a forward in this process; check them, and have them answer labelled rows."""

import contextlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from alora.base.limits import IN_ARTIFACT, require_room
from alora.base.load import LoadedBase
from alora.bundle.battery import battery_folders, require_one_base
from alora.bundle.golden import disagreement, largest_difference, measure, tolerance
from alora.bundle.light import Bundle, read_bundle
from alora.data.conversation import LabelledConversation
from alora.errors import CheckFailed
from alora.evaluation.predict import LabelScorer, Predictions, predict
from alora.prefix.scorer import Scorer
from alora.prompt.render import Question
from alora.text import note


def check_golden(bundle: Bundle, base: LoadedBase, tolerance: float) -> float:
    """Score the golden rows on ``base`` and return the largest difference (absolute; relative above 1)."""
    bundle.check_base(base)
    conversations = [row.conversation for row in bundle.golden]
    with Scorer(base, [bundle.weights]) as scorer:
        again = measure(scorer, bundle.renderer(base), bundle.suffix, conversations)
    difference = largest_difference(bundle.golden, again)
    if not difference <= tolerance:
        raise CheckFailed(
            f"{bundle.folder}: label logits of its golden rows differ by {difference:.2e}, above {tolerance:.0e} "
            f"(made in {bundle.manifest.base.dtype}, now {base.dtype})"
        )
    return difference


def check_bundles(bundles: Sequence[Bundle], base: LoadedBase, rows: int | None = 2) -> None:
    """Check that ``base`` is every bundle's, and that each adapter answers its golden rows there as it did when it was
    exported, by ``rows`` of them (None: all). A digest shows only that a file is the listed one. All bundles share one
    pass."""
    for bundle in bundles:
        bundle.check_base(base)
    asked = [(bundle, bundle.golden[:rows]) for bundle in bundles if bundle.golden]
    if not asked:
        return
    questions = [
        Question(renderer.prefix(row.conversation), [bundle.suffix], [adapter])
        for adapter, (bundle, golden) in enumerate(asked)
        for renderer in (bundle.renderer(base),)
        for row in golden
    ]
    with Scorer(base, [bundle.weights for bundle, _ in asked]) as scorer:
        answers = iter(scorer.score_rows(questions))
    dtype, failures = base.dtype, []
    for bundle, golden in asked:
        far = disagreement(golden, [logits_L.tolist() for (logits_L,) in islice(answers, len(golden))])
        bound = tolerance(dtype, bundle.manifest.base.dtype)
        if not far <= bound:
            failures.append(f"{bundle.folder}: log-probabilities of its labels differ by {far:.2g} (tolerance {bound})")
    if failures:
        raise CheckFailed(
            "\n  ".join(["golden rows are not answered as they were at export:", *failures])
            + "\nthe adapter, its golden rows or its operating point was replaced since; copy the original back"
        )


def check_bases(bundles: Sequence[Bundle], base: LoadedBase) -> None:
    """Check every bundle on the loaded base, and note a threshold that was fitted in another precision."""
    check_bundles(bundles, base)
    for bundle in bundles:
        if bundle.manifest.base.dtype != base.dtype:
            note(
                f"{bundle.policy.id}: its threshold was fitted in {bundle.manifest.base.dtype}, the base runs in "
                f"{base.dtype}; add base.dtype={bundle.manifest.base.dtype}, or expect small differences"
            )


def load_bundle(folder: Path | str) -> Bundle:
    """:func:`~alora.bundle.light.read_bundle`, with its weights in memory."""
    bundle = read_bundle(folder)
    _ = bundle.weights
    return bundle


def load_battery(folder: Path | str) -> list[Bundle]:
    """Read the bundles that ``battery.json`` lists, with their weights, in its order."""
    bundles = [load_bundle(path) for path in battery_folders(folder)]
    require_one_base(bundles)
    return bundles


def answers_of(
    bundles: Sequence[Bundle],
    base: LoadedBase,
    rows: Sequence[LabelledConversation],
    max_tokens: int,
    scorer: LabelScorer | None = None,
) -> list[Predictions]:
    """What each bundle answers to the rows that are labelled for it; packed, where no ``scorer`` is given."""
    renderer, suffixes = bundles[0].renderer(base), {bundle.policy.id: bundle.suffix for bundle in bundles}
    require_room(base.model, renderer, rows, suffixes, IN_ARTIFACT)
    policies = [bundle.policy for bundle in bundles]
    with contextlib.nullcontext(scorer) if scorer else Scorer(base, [bundle.weights for bundle in bundles]) as asked:
        return predict(asked, renderer, policies, list(suffixes.values()), rows, max_tokens=max_tokens)
