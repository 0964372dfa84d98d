"""alora: guardrail policies as activated LoRA adapters that share one base model's prefix KV."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from alora.version import __version__

if TYPE_CHECKING:
    from alora.api import train
    from alora.client.guard import AsyncGuard, Guard
    from alora.client.in_process import Battery, load
    from alora.verdict import Verdict, Verdicts

__all__ = [
    "AsyncGuard",
    "Battery",
    "Guard",
    "Verdict",
    "Verdicts",
    "__version__",
    "load",
    "train",
]
_HOMES = {
    **dict.fromkeys(("Battery", "load"), "alora.client.in_process"),
    "train": "alora.api",
    **dict.fromkeys(("AsyncGuard", "Guard"), "alora.client.guard"),
    **dict.fromkeys(("Verdict", "Verdicts"), "alora.verdict"),
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are used: ``import alora`` alone imports nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'alora' has no attribute {name!r}")
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_not_of_a_missing_kernel)
    return getattr(import_module(_HOMES.get(name, "alora.api")), name)


def _not_of_a_missing_kernel(record: logging.LogRecord) -> bool:
    """bitsandbytes, on import, warns that a faster kernel for some CPUs is not installed; nothing needs it."""
    return "kernels-community" not in str(record.msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
