"""``alora serve serving.scorer=packed``: a guard that computes in this process."""

from alora.base.limits import longest_input
from alora.base.load import load_base
from alora.bundle.named import named_artifacts, read_bundles
from alora.bundle.read import check_bases, load_bundle
from alora.commands.serve_guard import serve_guard
from alora.config.schema import Recipe
from alora.guard.loading import make_guard
from alora.guard.packed import PackedReader


def serve(recipe: Recipe) -> int:
    bundles, settings = read_bundles(named_artifacts(recipe), recipe.base, recipe.policies, load_bundle)
    base = load_base(settings)
    check_bases(bundles, base)
    reader = PackedReader(base, bundles)
    made = make_guard(bundles, base, base.dtype, reader, longest_input(base.model), load_bundle)
    return serve_guard(recipe.serving, *made)
