"""``alora serve battery=DIR [serving.port=8000]``: stock vLLM's OpenAI server with the bundles and the guard in it.

``serving.scorer=packed`` serves the guard alone, from this process, without vLLM; a URL in its place, or a list of
them, serves it alone before those vLLM servers, which run the plugin. Each way is a file of its own, which imports only
what it needs: the last one no torch.
"""

from alora.config.schema import Recipe
from alora.errors import MissingDependency


def run(recipe: Recipe) -> int:
    """Check bundles, base and plugin, then serve. With vLLM this process becomes its server."""
    if recipe.serving.scorer == "vllm":
        from alora.commands.serve_vllm import serve

        return serve(recipe)
    try:
        if recipe.serving.scorer == "packed":
            from alora.commands.serve_packed import serve
        else:
            from alora.commands.serve_remote import serve
    except ImportError as error:
        raise MissingDependency(f"the guard needs FastAPI ({error}); pip install 'alora-toolkit[guard]'") from error
    return serve(recipe)
