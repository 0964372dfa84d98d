"""Whether the plugin is active in this process, and why not: written by ``install``, read by every patch."""

import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass

ENTRY_POINT_GROUP = "vllm.general_plugins"
ENTRY_POINT = "alora.vllm_plugin:register"
ENTRY_POINT_NAME = "alora"
CHOICE = "VLLM_PLUGINS"  # the names that vLLM may load, by commas; unset: all of them


@dataclass(frozen=True)
class Status:
    """Whether aLoRA can be served from this process, and if not, why not.

    ``entry_point`` tells whether vLLM will find the plugin by itself in the processes that it starts.
    """

    active: bool
    reason: str
    vllm_version: str | None
    entry_point: bool
    patched: tuple[str, ...] = ()


class State:
    """This process's outcome. ``undo`` restores stock vLLM, last change first."""

    def __init__(self) -> None:
        self.registered = False
        self.active = False
        self.reason = ""
        self.vllm_version: str | None = None
        self.patched: tuple[str, ...] = ()
        self.seeds_end_engine = False
        self.undo: list[Callable[[], None]] = []


STATE = State()


def _entry_point_installed() -> bool:
    return any(point.value == ENTRY_POINT for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def status() -> Status:
    """The outcome of ``register`` in this process; imports nothing heavy and changes nothing."""
    reason = STATE.reason if STATE.registered else _why_not_registered()
    return Status(STATE.active, reason, STATE.vllm_version, _entry_point_installed(), STATE.patched)


def _why_not_registered() -> str:
    chosen = os.environ.get(CHOICE)
    if chosen is not None and ENTRY_POINT_NAME not in chosen.split(","):
        return f"{CHOICE}={chosen!r} keeps it out; unset it, or add {ENTRY_POINT_NAME}"
    return "register() has not run in this process"


def require_active() -> None:
    """Raise RuntimeError where the plugin is not active: called by whatever would be wrong without the mask."""
    if not STATE.active:
        raise RuntimeError(
            f"an aLoRA request reached a process where the alora plugin is not active: {status().reason}"
        )
