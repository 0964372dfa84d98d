"""``alora serve serving.scorer=vllm``: this process becomes stock vLLM's server with the bundles in it."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NoReturn

from alora.base.stored import base_folder, describe_base
from alora.bundle.artifact import named_artifacts, read_bundles
from alora.bundle.read import load_bundle
from alora.client.engine import ServedAdapter
from alora.client.launch import server_command, server_environment
from alora.client.plugin import WAITING, require_plugin
from alora.config.schema import Recipe
from alora.config.secrets import KEY, open_to_all, redacted, refuse_key
from alora.errors import CheckFailed
from alora.guard.admission import QUEUE
from alora.guard.serving_set import SERVING_ROOT, serving_set_of
from alora.text import note


def serve(recipe: Recipe) -> NoReturn:
    """Check bundles, base and plugin, then run the server."""
    refuse_key(recipe.serving.arguments)
    bundles, settings = read_bundles(named_artifacts(recipe), recipe.base, recipe.policies, load_bundle)
    plain = [str(bundle.folder) for bundle in bundles if not bundle.manifest.activated]
    if len(plain) == len(bundles) > 1:
        note("these are all plain LoRA: each computes the conversation for itself")
    folder = base_folder(settings)
    base = describe_base(settings, folder)
    for bundle in bundles:
        bundle.check_base(base)
    bounds = (recipe.serving.queue_requests, recipe.serving.queue_tokens)
    environment = server_environment() | {name: str(bound) for name, bound in zip(QUEUE, bounds, strict=True) if bound}
    note(WAITING)
    require_plugin(environment)
    first = bundles[0].manifest.base
    dtype = first.dtype if settings.dtype == "auto" else settings.dtype
    if dtype == "float64":
        raise CheckFailed("vLLM does not run float64; add base.dtype=float32 or base.dtype=bfloat16")
    adapters = [ServedAdapter.of(bundle) for bundle in bundles]
    labels = max(len(bundle.policy.labels) for bundle in bundles)
    command = server_command(folder, first.source, adapters, labels, dtype, recipe.serving)
    note("\n".join(f"serving {adapter.name} from {adapter.folder}" for adapter in adapters))
    served = serving_set_of([bundle.folder for bundle in bundles], environment.get(SERVING_ROOT))
    if remark := served.remark(bundles):
        note(remark)
    announce(command, environment)
    os.execve(command[0], command, environment)


def announce(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show the command without its secrets, and remark on a server that anybody may ask."""
    host = re.findall(r"--host[= ](\S+)", " ".join(command))[-1]
    if remark := open_to_all(host, bool(environment.get(KEY))):
        note(remark)
    note(redacted(shlex.join(command)))
