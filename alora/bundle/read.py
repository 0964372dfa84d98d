"""Open a bundle with its weights, for a forward in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from alora.adapter.folder import AdapterWeights, load_adapter
from alora.base.load import LoadedBase
from alora.bundle.battery import battery_folders, require_one_base
from alora.bundle.golden import disagreement, largest_difference, tolerance
from alora.bundle.light import LightBundle, read_bundle
from alora.errors import BundleError, CheckFailed
from alora.prefix.scorer import Scorer
from alora.prompt.render import Question
from alora.text import note


@dataclass(frozen=True)
class Bundle(LightBundle):
    """A bundle that was read and is whole, with its weights."""

    weights: AdapterWeights

    def golden_questions(self, base: LoadedBase, rows: int | None = None, adapter: int = 0) -> list[Question]:
        """What its first golden rows ask adapter number ``adapter`` of a scorer."""
        renderer = self.renderer(base)
        return [Question(renderer.prefix(row.conversation), [self.suffix], [adapter]) for row in self.golden[:rows]]

    def check_golden(self, base: LoadedBase, tolerance: float) -> float:
        """Score the golden rows on ``base`` and return the largest difference (absolute; relative above 1)."""
        self.check_base(base)
        asked = self.golden_questions(base)
        with Scorer(base, [self.weights]) as scorer:
            answers = [tuple(map(float, scorer.score_rows([question])[0][0])) for question in asked]
        again = [replace(row, label_logits=logits_L) for row, logits_L in zip(self.golden, answers, strict=True)]
        difference = largest_difference(self.golden, again)
        if not difference <= tolerance:
            raise CheckFailed(
                f"{self.folder}: label logits of its golden rows differ by {difference:.2e}, above {tolerance:.0e} "
                f"(made in {self.manifest.base.dtype}, now {base.dtype})"
            )
        return difference


def check_bundles(bundles: Sequence[Bundle], base: LoadedBase, rows: int | None = 2) -> None:
    """Check that ``base`` is every bundle's, and that each adapter answers its golden rows there as it did when it was
    exported. A digest shows only that a file is the listed one. All bundles share one pass.

    Args:
        rows: golden rows of each bundle that are asked; None: all of them.
    """
    for bundle in bundles:
        bundle.check_base(base)
    asked = [(bundle, bundle.golden[:rows]) for bundle in bundles if bundle.golden]
    if not asked:
        return
    questions = [
        question
        for adapter, (bundle, _) in enumerate(asked)
        for question in bundle.golden_questions(base, rows, adapter)
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
    """Read a bundle and check everything that needs no base."""
    light = read_bundle(folder)
    weights = load_adapter(light.folder)
    if weights.digest != light.manifest.adapter_digest:
        raise BundleError(
            f"{folder}: the adapter's digest is {weights.digest[:12]}, the manifest's is "
            f"{light.manifest.adapter_digest[:12]}: not the adapter that was certified; export the bundle again"
        )
    return Bundle(light.folder, light.manifest, light.golden, weights)


def load_battery(folder: Path | str) -> list[Bundle]:
    """Read the bundles that ``battery.json`` lists, with their weights, in its order."""
    bundles = [load_bundle(path) for path in battery_folders(folder)]
    require_one_base(bundles)
    return bundles
