"""Open a bundle with its weights, for a forward in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from alora.adapter.folder import AdapterWeights, load_adapter
from alora.bundle.golden import largest_difference, measure
from alora.bundle.light import LightBundle, read_bundle
from alora.errors import BundleError, CheckFailed

if TYPE_CHECKING:
    from alora.base.load import LoadedBase


@dataclass(frozen=True)
class Bundle(LightBundle):
    """A bundle that was read and found whole."""

    weights: AdapterWeights

    def check_golden(self, base: LoadedBase, tolerance: float) -> float:
        """Score the golden rows on ``base`` and return the largest difference (absolute; relative above 1).

        Raises:
            BundleError: see :meth:`check_base`.
            CheckFailed: the difference is above ``tolerance``.
        """
        from alora.prefix.scorer import Scorer

        self.check_base(base)
        conversations = [row.conversation for row in self.golden]
        with Scorer(base, [self.weights]) as scorer:
            again = measure(scorer, self.renderer(base), self.suffix, conversations)
        difference = largest_difference(self.golden, again)
        if not difference <= tolerance:
            raise CheckFailed(
                f"{self.folder}: label logits of its golden rows differ by {difference:.2e}, above {tolerance:.0e} "
                f"(made in {self.manifest.base.dtype}, now {str(base.model.dtype).removeprefix('torch.')})"
            )
        return difference


def load_bundle(folder: Path | str) -> Bundle:
    """Read a bundle and check everything that needs no base.

    Raises:
        BundleError: see :func:`alora.bundle.light.read_bundle`; or the adapter is not the manifest's.
    """
    light = read_bundle(folder)
    weights = load_adapter(light.folder)
    if weights.digest != light.manifest.adapter_digest:
        raise BundleError(
            f"{folder}: the adapter's digest is {weights.digest[:12]}, the manifest's is "
            f"{light.manifest.adapter_digest[:12]}: not the adapter that was certified; export the bundle again"
        )
    return Bundle(light.folder, light.manifest, light.golden, weights)
