"""Put every patch in, or none, and say which.

Order matters: the gate for aLoRA adapters is shut first; then all symbols are checked before one is changed; then all
patches go in and prove themselves; only then does the gate open. Whatever fails, the patches come out again, vLLM runs
on as stock, and aLoRA adapters are refused.
"""

import importlib.metadata
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from alora.vllm_plugin import compat

_logger = logging.getLogger("vllm.alora")

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


class _State:
    """This process's outcome. ``undo`` restores stock vLLM, last change first."""

    def __init__(self) -> None:
        self.registered = False
        self.active = False
        self.reason = ""
        self.vllm_version: str | None = None
        self.patched: tuple[str, ...] = ()
        self.undo: list[Callable[[], None]] = []


_state = _State()


def _entry_point_installed() -> bool:
    return any(point.value == ENTRY_POINT for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def status() -> Status:
    """The outcome of :func:`register` in this process; imports nothing heavy and changes nothing."""
    reason = _state.reason if _state.registered else _why_not_registered()
    return Status(_state.active, reason, _state.vllm_version, _entry_point_installed(), _state.patched)


def _why_not_registered() -> str:
    chosen = os.environ.get(CHOICE)
    if chosen is not None and ENTRY_POINT_NAME not in chosen.split(","):
        return f"{CHOICE}={chosen!r} keeps it out; unset it, or add {ENTRY_POINT_NAME}"
    return "register() has not run in this process"


def require_active() -> None:
    """Raise RuntimeError where the plugin is not active: called by whatever would be wrong without the mask."""
    if not _state.active:
        raise RuntimeError(
            f"an aLoRA request reached a process where the alora plugin is not active: {status().reason}"
        )


def _put(symbol: compat.Symbol, original: Any, replacement: Any) -> None:
    """Replace a callable and, for a function, the copies that other vLLM modules imported by name."""
    place = compat.holder(symbol)
    places = [place] if symbol.owner else [place, *compat.copies_by_name(symbol, original)]
    for module_or_class in places:
        stock = vars(module_or_class)[symbol.name]
        setattr(module_or_class, symbol.name, replacement)
        _state.undo.append(lambda at=module_or_class, name=symbol.name, was=stock: setattr(at, name, was))


def _roll_back(depth: int = 0) -> None:
    while len(_state.undo) > depth:
        _state.undo.pop()()


def _patches() -> list[tuple[compat.Symbol, Callable[[Any], Any]]]:
    """What is replaced by what. Hash and mask stand in one list, so neither goes in alone."""
    from alora.vllm_plugin import activation_source, cpu_lora_ops, engine_check, peft_gate, prefix_hash, token_mapping

    def masking(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda original: engine_check.masked(patch(original))

    return [
        (compat.V1_ACTIVE_LORAS, masking(token_mapping.v1_patch)),
        (compat.V2_LORA_INPUTS, masking(token_mapping.v2_patch)),
        (compat.V2_PREPARE_INPUTS, masking(token_mapping.v2_positions_patch)),
        (compat.EXTRA_KEYS, prefix_hash.extra_keys_patch),
        (compat.BLOCK_HASHER, prefix_hash.block_hasher_patch),
        (compat.ENGINE_INIT_CACHES, engine_check.engine_start_patch),
        (compat.ENGINE_PREPROCESS, activation_source.preprocess_patch),
        (compat.ENGINE_ADD_LORA, activation_source.add_lora_patch),
        (compat.ENGINE_REMOVE_LORA, activation_source.remove_lora_patch),
        (compat.ENGINE_PIN_LORA, activation_source.pin_lora_patch),
        (compat.ENGINE_LIST_LORAS, activation_source.list_loras_patch),
        (compat.PROCESS_INPUTS, activation_source.process_inputs_patch),
        (compat.PUNICA_INIT, cpu_lora_ops.punica_init_patch),
        (compat.BGMV_SHRINK, cpu_lora_ops.adapted_rows_only),
        (compat.BGMV_EXPAND, cpu_lora_ops.adapted_rows_only),
        (compat.BGMV_EXPAND_SLICE, cpu_lora_ops.adapted_rows_only),
        (compat.PEFT_VALIDATE, peft_gate.accept_patch),
    ]


def _shut_gate(reason: str) -> None:
    from alora.vllm_plugin.peft_gate import refuse_patch

    stock = compat.current(compat.PEFT_FROM_DIR)
    _put(compat.PEFT_FROM_DIR, stock, refuse_patch(stock, reason))


def _install() -> None:
    _state.vllm_version = compat.vllm_version()
    compat.check_version(_state.vllm_version)
    patches = [(symbol, compat.current(symbol), patch) for symbol, patch in _patches()]
    compat.current(compat.V1_BATCH_INPUTS)
    for symbol, original, patch in patches:
        _put(symbol, original, patch(original))
    from alora.vllm_plugin.self_test import run_self_test

    run_self_test()
    _state.patched = tuple(symbol.path for symbol, _, _ in patches)


def register() -> None:
    """Entry point of ``vllm.general_plugins``: make this process serve aLoRA, or refuse it. Safe to call again.

    Never raises for a vLLM that it does not know: the base and plain LoRA are served as before, aLoRA adapters are
    refused, and :func:`status` holds the reason.
    """
    if _state.registered:
        return
    _state.registered = True
    try:
        _install()
    except Exception as error:
        _roll_back()
        _state.reason = f"{type(error).__name__}: {error}"
        _logger.error(
            "aLoRA adapters are refused: %s", _state.reason, exc_info=not isinstance(error, compat.Incompatible)
        )
        if _state.vllm_version is not None:
            _shut_gate(_state.reason)
        return
    _state.active = True
    _state.reason = "active"
    _logger.info("alora plugin active on vLLM %s", _state.vllm_version)


def unregister() -> None:
    """Restore stock vLLM in this process; for tests and benchmarks that compare with stock."""
    _roll_back()
    _state.__init__()
