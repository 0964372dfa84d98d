"""``alora serve battery=DIR [serving.port=8000]``: stock vLLM's OpenAI server with the bundles in it."""

from __future__ import annotations

import os
import shlex

from alora.commands.artifacts import open_bundles
from alora.commands.output import note
from alora.config.schema import Recipe
from alora.config.secrets import holds_key, is_far, redacted
from alora.errors import CheckFailed


def run(recipe: Recipe) -> int:
    """Check bundles, base and plugin, then become the server: this process is vLLM's from there on."""
    from alora.base.describe import base_folder, describe_base
    from alora.serving.client import KEY
    from alora.serving.engine import ServedAdapter
    from alora.serving.launch import server_command, server_environment
    from alora.serving.plugin import require_plugin

    bundles, settings = open_bundles(recipe)
    plain = [str(bundle.folder) for bundle in bundles if not bundle.manifest.activated]
    if len(plain) == len(bundles) > 1:
        note("these are all plain LoRA: each computes the conversation for itself")
    folder = base_folder(settings)
    base = describe_base(settings, folder)
    for bundle in bundles:
        bundle.check_base(base)
    environment = server_environment()
    note("asking vLLM whether it takes the plugin (some seconds)")
    require_plugin(environment)
    first = bundles[0].manifest.base
    dtype = first.dtype if settings.dtype == "auto" else settings.dtype
    if dtype == "float64":
        raise CheckFailed("vLLM does not run float64; add base.dtype=float32 or base.dtype=bfloat16")
    adapters = [ServedAdapter.of(bundle) for bundle in bundles]
    labels = max(len(bundle.policy.labels) for bundle in bundles)
    command = server_command(folder, first.source, adapters, labels, dtype, recipe.serving)
    note("\n".join(f"serving {adapter.name} from {adapter.folder}" for adapter in adapters))
    if is_far(recipe.serving.host) and not (environment.get(KEY) or holds_key(recipe.serving.arguments)):
        note(f"serving.host={recipe.serving.host} takes requests from other machines, and no key is set; export {KEY}")
    note(redacted(shlex.join(command)))
    os.execve(command[0], command, environment)
