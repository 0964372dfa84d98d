"""``alora serve battery=DIR [serving.port=8000]``: stock vLLM's OpenAI server with the bundles and the guard in it.

``serving.scorer=packed`` serves the guard alone, from this process, without vLLM; a URL in its place, or a list of
them, serves it alone before those vLLM servers, which run the plugin.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from alora.commands.bundles import check_bases, open_bundles, read_bundles
from alora.commands.output import note
from alora.config.schema import Recipe
from alora.config.secrets import KEY, holds_key, in_the_clear, is_far, redacted
from alora.errors import CheckFailed, MissingDependency

if TYPE_CHECKING:
    from alora.guard.core import Guard
    from alora.guard.loading import Loader


def run(recipe: Recipe) -> int:
    """Check bundles, base and plugin, then serve. With vLLM this process becomes its server."""
    if recipe.serving.scorer == "vllm":
        return _serve_vllm(recipe)
    try:
        import uvicorn

        from alora.guard.standalone import make_app
    except ImportError as error:
        raise MissingDependency(f"the guard needs FastAPI ({error}); pip install 'alora-toolkit[guard]'") from error
    scorer = recipe.serving.scorer
    urls = [scorer] if isinstance(scorer, str) else scorer
    guard, loader = _packed(recipe) if scorer == "packed" else _remote(recipe, urls)
    host, port = recipe.serving.host, recipe.serving.port
    _remark_on_open(host, bool(os.environ.get(KEY)))
    note(f"serving {', '.join(item.name for item in guard.served)} on http://{host}:{port}/v1/guard")
    uvicorn.run(make_app(guard, loader), host=host, port=port, log_level="warning")
    return 0


def _serve_vllm(recipe: Recipe) -> NoReturn:
    from alora.base.describe import base_folder, describe_base
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
    announce(command, environment)
    os.execve(command[0], command, environment)


def _packed(recipe: Recipe) -> tuple[Guard, Loader]:
    """A guard that computes in this process."""
    from alora.base.limits import longest_input
    from alora.base.load import load_base
    from alora.bundle.read import load_bundle
    from alora.guard.loading import make_guard
    from alora.guard.packed import PackedReader

    bundles, settings = open_bundles(recipe)
    base = load_base(settings)
    check_bases(bundles, base)
    dtype = str(base.model.dtype).removeprefix("torch.")
    return make_guard(bundles, base, dtype, PackedReader(base, bundles), longest_input(base.model), load_bundle)


def _remote(recipe: Recipe, urls: Sequence[str]) -> tuple[Guard, Loader]:
    """A guard before servers, without torch."""
    from alora.base.describe import describe_prompts
    from alora.bundle.light import read_bundle
    from alora.guard.loading import make_guard
    from alora.guard.remote import RemoteReader, longest_prompt

    for remark in filter(None, map(in_the_clear, urls)):
        note(remark)
    bundles, settings = read_bundles(recipe, read_bundle)
    base = describe_prompts(settings, bundles[0].manifest.base.fingerprint)
    for bundle in bundles:
        bundle.check_base(base)
    reader = RemoteReader(urls, bundles, bundles[0].renderer(base))
    # A server does not tell its dtype.
    return make_guard(bundles, base, "bfloat16", reader, longest_prompt(urls), read_bundle)


def announce(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show the command without its secrets, and remark on a server that anybody may ask."""
    host = re.findall(r"--host[= ](\S+)", " ".join(command))[-1]
    _remark_on_open(host, bool(environment.get(KEY)) or holds_key(command))
    note(redacted(shlex.join(command)))


def _remark_on_open(host: str, has_key: bool) -> None:
    if is_far(host) and not has_key:
        note(f"{host} takes requests from other machines, and anybody may ask: no key is set; export {KEY}")
