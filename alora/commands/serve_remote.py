"""``alora serve serving.scorer=URL``, or a list of them: a guard before vLLM servers, without torch."""

from alora.base.describe import describe_prompts
from alora.bundle.light import read_bundle
from alora.commands.bundles import read_bundles
from alora.commands.output import note
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear
from alora.guard.core import Guard
from alora.guard.loading import Loader, make_guard
from alora.guard.remote import RemoteReader, longest_prompt


def make(recipe: Recipe) -> tuple[Guard, Loader]:
    """The guard, and what loads more bundles into it."""
    urls = [recipe.serving.scorer] if isinstance(recipe.serving.scorer, str) else recipe.serving.scorer
    for remark in filter(None, map(in_the_clear, urls)):
        note(remark)
    bundles, settings = read_bundles(recipe, read_bundle)
    base = describe_prompts(settings, bundles[0].manifest.base.fingerprint)
    for bundle in bundles:
        bundle.check_base(base)
    reader = RemoteReader(urls, bundles, bundles[0].renderer(base))
    # A server does not tell its dtype.
    return make_guard(bundles, base, "bfloat16", reader, longest_prompt(urls), read_bundle)
