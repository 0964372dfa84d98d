"""``alora serve serving.scorer=URL``, or a list of them: a guard before vLLM servers, without torch."""

from alora.base.describe import describe_prompts
from alora.bundle.light import read_bundle
from alora.bundle.named import named_artifacts, read_bundles
from alora.commands.serve_guard import serve_guard
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear
from alora.guard.loading import make_guard
from alora.guard.remote import RemoteReader, longest_prompt
from alora.notes import note


def serve(recipe: Recipe) -> int:
    """Check the bundles against the base's tokenizer, then answer."""
    urls = [recipe.serving.scorer] if isinstance(recipe.serving.scorer, str) else recipe.serving.scorer
    for remark in filter(None, map(in_the_clear, urls)):
        note(remark)
    bundles, settings = read_bundles(named_artifacts(recipe), recipe.base, recipe.policies, read_bundle)
    base = describe_prompts(settings, bundles[0].manifest.base.fingerprint)
    for bundle in bundles:
        bundle.check_base(base)
    reader = RemoteReader(urls, bundles, bundles[0].renderer(base))
    # A server does not tell its dtype.
    made = make_guard(bundles, base, "bfloat16", reader, longest_prompt(urls), read_bundle)
    return serve_guard(recipe.serving, *made)
