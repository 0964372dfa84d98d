"""The command line of stock vLLM's OpenAI server with bundles in it."""

import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from alora.client.engine import CPU_ENVIRONMENT, ServedAdapter, block_size, on_gpu, served_rank
from alora.config.environment import package_version
from alora.config.schema import ServingSettings

# What vLLM loads where VLLM_PLUGINS is not set; vllm.endpoint_plugins is loaded by name alone.
_PLUGIN_GROUPS = tuple(f"vllm.{kind}_plugins" for kind in ("general", "io_processor", "platform", "stat_logger"))
_MOST_LOGPROBS = 20  # vLLM's own default


def server_command(
    folder: Path, name: str, adapters: Sequence[ServedAdapter], labels: int, dtype: str, settings: ServingSettings
) -> list[str]:
    """The command line of vLLM's OpenAI server, for the base in ``folder`` under ``name``; ``labels`` is how many the
    policy with the most has."""
    modules = [json.dumps({"name": adapter.name, "path": str(adapter.folder)}) for adapter in adapters]
    chosen = {
        "--host": settings.host,
        "--port": settings.port,
        "--served-model-name": name,
        "--dtype": dtype,
        "--block-size": block_size(),
        "--max-loras": settings.max_loras or len(adapters),
        "--max-cpu-loras": max(len(adapters), settings.max_loras or 0) + settings.room,
        "--max-lora-rank": served_rank(max(adapter.rank for adapter in adapters)),
        "--max-logprobs": max(labels, _MOST_LOGPROBS),
        # Log-probabilities over the label tokens alone; raw ones hold the most likely tokens, which need not be ours.
        "--logprobs-mode": "processed_logprobs",
        "--shutdown-timeout": settings.drain_s,
        **({"--max-model-len": settings.max_model_len} if settings.max_model_len else {}),
    }
    options = [word for option, value in chosen.items() for word in (option, str(value))]
    flags = ["--enable-lora", "--enable-prefix-caching", "--lora-modules", *modules]
    server = [sys.executable, "-P", "-m"]
    if package_version("vllm") is not None:
        server += ["vllm.entrypoints.cli.main", "serve", str(folder)]
    else:  # a CPU build's `vllm serve` looks for a distribution called vllm
        server += ["vllm.entrypoints.openai.api_server", "--model", str(folder)]
    return [*server, *options, *flags, *settings.arguments]


def server_environment() -> dict[str, str]:
    """This process's environment, with what vLLM needs on a machine without a GPU, and with the guard's routes enabled.

    vLLM mounts routes only of plugins that ``VLLM_PLUGINS`` names, which then has to name all others, too.
    """
    plugins = (point.name for group in _PLUGIN_GROUPS for point in entry_points(group=group))
    return {
        **({} if on_gpu() else CPU_ENVIRONMENT),
        "VLLM_PLUGINS": ",".join(sorted({*plugins, "alora"})),
        **os.environ,
    }
