"""alora: guardrail policies as activated LoRA adapters that share one base model's prefix KV."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from alora.version import __version__

if TYPE_CHECKING:
    from alora.api import Battery, Verdicts, load, train
    from alora.remote import AsyncClient, Client
    from alora.verdict import Verdict

__all__ = ["AsyncClient", "Battery", "Client", "Verdict", "Verdicts", "__version__", "load", "train"]
_HOMES = {"AsyncClient": "alora.remote", "Client": "alora.remote", "Verdict": "alora.verdict"}  # the others: alora.api


def __getattr__(name: str) -> Any:
    """The public names, imported when they are used: ``import alora`` alone imports nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'alora' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "alora.api")), name)
