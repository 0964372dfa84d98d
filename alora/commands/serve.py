"""``alora serve battery=DIR [serving.port=8000]``: stock vLLM's OpenAI server with the bundles and the guard in it.

``serving.scorer=packed`` serves the guard alone, from this process, without vLLM. Each way is a file of its own, which
imports only what it needs.
"""

import importlib
import re
import socket

from alora.config.schema import Recipe, ServingSettings
from alora.errors import ConfigError, MissingDependency


def run(recipe: Recipe) -> int:
    """Check bundles, base and plugin, then serve. With vLLM this process becomes its server."""
    _require_port(recipe.serving)
    try:
        serving = importlib.import_module(f"alora.commands.serve_{recipe.serving.scorer}")
    except ImportError as error:
        if recipe.serving.scorer == "vllm":  # has no guard
            raise
        raise MissingDependency(f"the guard needs FastAPI ({error}); pip install 'alora-toolkit[guard]'") from error
    return serving.serve(recipe)


def _require_port(settings: ServingSettings) -> None:
    """Refuse now what the server would find only after it has loaded the base."""
    if any(re.match(r"--(host|port|uds)\b", word) for word in settings.arguments):  # vLLM's own win
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except (OSError, ValueError) as error:  # ValueError: no name that could be looked up
        why = error.strerror if isinstance(error, OSError) else error
        address = f"serving.host={settings.host[:80]} serving.port={settings.port}"
        raise ConfigError(f"cannot listen on {address}: {why}; give another address or port") from error
