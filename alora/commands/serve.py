"""``alora serve battery=DIR [serving.port=8000]``: stock vLLM's OpenAI server with the bundles and the guard in it.

``serving.scorer=packed`` serves the guard alone, from this process, without vLLM; a URL in its place, or a list of
them, serves it alone before those vLLM servers, which run the plugin. Each way imports only what it needs: the last one
no torch.
"""

from __future__ import annotations

import os

from alora.commands.output import note
from alora.config.schema import Recipe
from alora.config.secrets import KEY, open_to_all
from alora.errors import MissingDependency


def run(recipe: Recipe) -> int:
    """Check bundles, base and plugin, then serve. With vLLM this process becomes its server."""
    if recipe.serving.scorer == "vllm":
        from alora.commands.serve_vllm import serve_vllm

        serve_vllm(recipe)
    try:
        import uvicorn

        from alora.guard.standalone import make_app
    except ImportError as error:
        raise MissingDependency(f"the guard needs FastAPI ({error}); pip install 'alora-toolkit[guard]'") from error
    if recipe.serving.scorer == "packed":
        from alora.commands.serve_packed import make
    else:
        from alora.commands.serve_remote import make
    guard, loader = make(recipe)
    host, port = recipe.serving.host, recipe.serving.port
    if remark := open_to_all(host, bool(os.environ.get(KEY))):
        note(remark)
    note(f"serving {', '.join(item.name for item in guard.served)} on http://{host}:{port}/v1/guard")
    # h11 bounds a header to 64 KiB; uvicorn's first choice, httptools, reads one without end.
    uvicorn.run(make_app(guard, loader), host=host, port=port, log_level="warning", http="h11")
    return 0
