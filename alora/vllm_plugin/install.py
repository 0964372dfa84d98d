"""Put every patch in, or none, and say which.

Order matters: the gate for aLoRA adapters is shut first; then all symbols are checked before one is changed; then all
patches go in and prove themselves; only then does the gate open. Whatever fails, the patches come out again, vLLM runs
on as stock, and aLoRA adapters are refused.
"""

import logging
from collections.abc import Callable
from typing import Any

from alora.vllm_plugin import compat, peft_gate
from alora.vllm_plugin.state import STATE

_logger = logging.getLogger("vllm.alora")


def _put(symbol: compat.Symbol, original: Any, replacement: Any) -> None:
    """Replace a callable and, for a function, the copies that other vLLM modules imported by name."""
    home = compat.holder(symbol)
    holders = [home] if symbol.owner else [home, *compat.copies_by_name(symbol, original)]
    for module_or_class in holders:
        stock = vars(module_or_class)[symbol.name]  # not getattr, which would bind a classmethod
        setattr(module_or_class, symbol.name, replacement)
        # As defaults: a lambda would see the loop's last values.
        STATE.undo.append(lambda at=module_or_class, name=symbol.name, was=stock: setattr(at, name, was))


def _roll_back(depth: int = 0) -> None:
    while len(STATE.undo) > depth:
        STATE.undo.pop()()


def _patches() -> list[tuple[compat.Symbol, Callable[[Any], Any]]]:
    """What is replaced by what. Hash and mask stand in one list, so neither goes in alone."""
    from alora.vllm_plugin import (
        activation_source,
        carried_request,
        cpu_lora_ops,
        engine_check,
        prefix_hash,
        refusals,
        token_mapping,
    )

    def masking(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda original: engine_check.masked(patch(original))

    return [
        (compat.V1_ACTIVE_LORAS, masking(token_mapping.v1_patch)),
        (compat.V2_LORA_INPUTS, masking(token_mapping.v2_patch)),
        (compat.V2_PREPARE_INPUTS, masking(token_mapping.v2_positions_patch)),
        *((symbol, token_mapping.prompt_logprobs_patch) for symbol in compat.prompt_logprobs()),
        (compat.HEAD_LOGITS, token_mapping.head_logits_patch),
        (compat.EXTRA_KEYS, prefix_hash.extra_keys_patch),
        (compat.BLOCK_HASHER, prefix_hash.block_hasher_patch),
        (compat.ZEROED_BLOCKS, prefix_hash.zeroed_blocks_patch),
        (compat.ENGINE_INIT_CACHES, engine_check.engine_start_patch),
        (compat.ENGINE_PREPROCESS, activation_source.preprocess_patch),
        (compat.ENGINE_ADD_REQUEST, activation_source.add_request_patch),
        (compat.ENGINE_ADD_LORA, activation_source.add_lora_patch),
        (compat.ENGINE_REMOVE_LORA, activation_source.remove_lora_patch),
        (compat.ENGINE_PIN_LORA, activation_source.pin_lora_patch),
        (compat.ENGINE_LIST_LORAS, activation_source.list_loras_patch),
        (compat.ENGINE_WAKE_UP, activation_source.wake_up_patch),
        (compat.ENGINE_REFUSE, refusals.engine_refuse_patch),
        (compat.PROCESS_OUTPUTS, refusals.process_outputs_patch),
        (compat.ASYNC_INIT, refusals.async_init_patch),
        (compat.PROCESS_INPUTS, activation_source.process_inputs_patch),
        (compat.beam_search_sequence(), activation_source.beam_search_patch),
        (compat.PUNICA_INIT, cpu_lora_ops.punica_init_patch),
        (compat.BGMV_SHRINK, cpu_lora_ops.adapted_rows_only),
        (compat.BGMV_EXPAND, cpu_lora_ops.adapted_rows_only),
        (compat.BGMV_EXPAND_SLICE, cpu_lora_ops.adapted_rows_only),
        (compat.PEFT_VALIDATE, peft_gate.accept_patch),
        (compat.WORKER_LOAD, carried_request.load_patch),
    ]


def _shut_gate() -> None:
    stock = compat.current(compat.PEFT_FROM_DIR)
    _put(compat.PEFT_FROM_DIR, stock, peft_gate.refuse_patch(stock))


def _open_gate() -> None:
    STATE.undo.pop(0)()  # it was shut first


def _install() -> None:
    STATE.vllm_version, STATE.reason = compat.vllm_version(), "its patches are not all in"
    if STATE.vllm_version is not None:
        _shut_gate()
    compat.check_version(STATE.vllm_version)
    # All symbols are looked up before one is changed.
    patches = [(symbol, compat.current(symbol), patch) for symbol, patch in _patches()]
    compat.current(compat.V1_BATCH_INPUTS)  # is called, not replaced; its parameters must be the known ones
    for symbol, original, patch in patches:
        _put(symbol, original, patch(original))
    from alora.vllm_plugin.self_test import run_self_test

    run_self_test()
    _open_gate()
    STATE.patched = tuple(symbol.path for symbol, _, _ in patches)


def register() -> None:
    """Entry point of ``vllm.general_plugins``: make this process serve aLoRA, or refuse it. Safe to call again.

    Never raises for a vLLM that it does not know: the base and plain LoRA are served as before, aLoRA adapters are
    refused, and :func:`alora.vllm_plugin.status` holds the reason.
    """
    if STATE.registered:
        return
    STATE.registered = True  # first: what failed once is not tried again
    try:
        _install()
    except Exception as error:
        _roll_back(depth=1)  # all but the gate
        STATE.reason = f"{type(error).__name__}: {error}"
        _logger.error(
            "aLoRA adapters are refused: %s", STATE.reason, exc_info=not isinstance(error, compat.Incompatible)
        )
        return
    STATE.active = True
    STATE.reason = "active"
    _logger.info("alora plugin active on vLLM %s", STATE.vllm_version)


def unregister() -> None:
    """Restore stock vLLM in this process; for tests and benchmarks that compare with stock."""
    _roll_back()
    STATE.__init__()
