"""``alora serve serving.scorer=packed``: a guard that computes in this process."""

from alora.base.limits import longest_input
from alora.base.load import load_base
from alora.bundle.read import load_bundle
from alora.commands.artifacts import check_bases, open_bundles
from alora.config.schema import Recipe
from alora.guard.core import Guard
from alora.guard.loading import Loader, make_guard
from alora.guard.packed import PackedReader


def make(recipe: Recipe) -> tuple[Guard, Loader]:
    """The guard, and what loads more bundles into it."""
    bundles, settings = open_bundles(recipe)
    base = load_base(settings)
    check_bases(bundles, base)
    dtype = str(base.model.dtype).removeprefix("torch.")
    return make_guard(bundles, base, dtype, PackedReader(base, bundles), longest_input(base.model), load_bundle)
