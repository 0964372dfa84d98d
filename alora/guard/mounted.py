"""The guard of a vLLM server: the bundles that it serves as LoRA modules, answered by its own engine."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from alora.base.stored import base_folder, describe_base
from alora.bundle.battery import require_one_base
from alora.bundle.manifest import MANIFEST_FILE
from alora.bundle.read import load_bundle
from alora.client.engine import on_gpu
from alora.config.schema import BaseSettings
from alora.config.secrets import ADMIN_KEY, key_in
from alora.errors import CheckFailed, ConfigError
from alora.guard.admission import QUEUE, admission
from alora.guard.core import GuardCore
from alora.guard.loading import Loader, make_guard
from alora.guard.reading_in_vllm import EngineReader
from alora.guard.serving_set import SERVING_ROOT
from alora.vllm_plugin import status


def guard_of(engine_client: Any, state: Any, args: Namespace) -> tuple[GuardCore, Loader]:
    """A guard of the bundles that vLLM serves as LoRA modules, each checked against the base; AloraError where there
    can be none."""
    if not status().active:
        raise CheckFailed(f"the alora plugin is not active: {status().reason}")
    if args.logprobs_mode != "processed_logprobs":
        raise ConfigError("start vLLM with --logprobs-mode processed_logprobs, as alora serve does")
    key_in(ADMIN_KEY)  # refused now, and not by each request
    loras = state.openai_serving_models.lora_requests
    folders = {name: Path(lora.lora_path) for name, lora in loras.items()}
    bundles = [load_bundle(at) for at in folders.values() if (at / MANIFEST_FILE).is_file()]
    if not bundles:
        raise ConfigError("no LoRA module of this server is an alora bundle; start it by alora serve battery=DIR")
    if missing := [bundle.served_name for bundle in bundles if bundle.served_name not in loras]:
        raise ConfigError(f"load each bundle under its own name; missing: {', '.join(missing)}")
    require_one_base(bundles)
    settings = bundles[0].base_settings(BaseSettings(source=args.model))
    base = describe_base(settings, base_folder(settings))
    for bundle in bundles:
        bundle.check_base(base)
    longest = engine_client.model_config.max_model_len - 1  # and the answer's own token
    dtype = str(engine_client.model_config.dtype).removeprefix("torch.")
    reader, root = EngineReader(engine_client, loras, bundles), os.environ.get(SERVING_ROOT)
    requests, tokens = map(_bound, QUEUE)
    bounds = admission(requests, tokens, on_gpu())
    return make_guard(bundles, base, dtype, reader, longest, bounds, root)


def _bound(variable: str) -> int | None:
    value = os.environ.get(variable)
    if value is None:
        return None
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise ConfigError(f"${variable} is {value[:80]!r}, not a positive number")
