"""Deliberate faults in the plugin, and for each the test that must fail because of it (``run_planted_faults``)."""

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

HERE = "tests/vllm"
Plant = Callable[[pytest.MonkeyPatch], None]


def _everywhere(patch: pytest.MonkeyPatch, symbol: Any, replacement: Any) -> None:
    """Replace one of vLLM's callables and its copies by name."""
    from alora.vllm_plugin import compat

    now = compat.current(symbol)
    if not symbol.owner:
        for module in compat.copies_by_name(symbol, now):
            patch.setattr(module, symbol.name, replacement)
    patch.setattr(compat.holder(symbol), symbol.name, replacement)


def _swap(place: str, make: Callable[[Any], Any]) -> Plant:
    """Put ``make(stock)`` in the place of ``module:name`` or ``module:class.name`` of the plugin."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")

    def plant(patch: pytest.MonkeyPatch) -> None:
        owner: Any = importlib.import_module(f"alora.vllm_plugin.{module}")
        for step in owners:
            owner = getattr(owner, step)
        patch.setattr(owner, name, make(getattr(owner, name, None)), raising=False)

    return plant


def _both(*plants: Plant) -> Plant:
    return lambda patch: [plant(patch) for plant in plants] and None


def _as_stock(*symbols: str) -> Plant:
    """vLLM's own functions in the place of patched ones."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        from alora.vllm_plugin import compat

        for symbol in (getattr(compat, name) for name in symbols):
            _everywhere(patch, symbol, compat.current(symbol).__wrapped__)

    return plant


def _shifted(by: int) -> Callable[[Any], Any]:
    def make(stock):
        def last_occurrence(ids, tokens):
            index = stock(ids, tokens)
            return None if index is None else max(index + by, 0)

        return last_occurrence

    return make


def _first_occurrence(ids, tokens):
    width = len(tokens)
    starts = (at for at in range(len(ids) - width + 1) if tuple(ids[at : at + width]) == tuple(tokens))
    return next(starts, None)


def _without_comparing(self, request, blocks):
    known = self._known(self._key(request, 1))
    return known[1][:blocks] if known else []


def _by_ids_alone(stock):
    def base_blocks(self, request):
        ids, lora_request = request.prompt_token_ids, request.lora_request
        seen = SimpleNamespace(mm_features=[], prompt_embeds=None, prompt_token_ids=ids, lora_request=lora_request)
        return stock(self, seen)

    return base_blocks


def _adapted_key(**changes: Any) -> Plant:
    def make(stock):
        def adapted_key(*block):
            key = stock(*block)
            return None if key is None else key._replace(**changes)

        return adapted_key

    return _swap("prefix_hash:adapted_key", make)


def _carried(field: str) -> Plant:
    """Requests that keep a field of the user's own request."""

    def make(stock):
        def carry(lora_request, record, activation):
            carried = stock(lora_request, record, activation)
            setattr(carried, field, getattr(lora_request, field))
            return carried

        return carry

    return _swap("activation_source:carry", make)


def _plain_masked_off(stock):
    def masked(tokens, rows, scheduled):
        if any(lora is not None and lora.activation_index for lora, _ in rows):
            rows = [(lora if lora is None or lora.activation_index else _never_active(lora), at) for lora, at in rows]
        return stock(tokens, rows, scheduled)

    return masked


def _never_active(lora: Any) -> Any:
    """A plain LoRA request that is taken for one that never activates."""
    never = copy.copy(lora)
    never.activation_index = 10**6
    return never


def _in_place_by_a_request(self, lora_request):
    record = self.read(lora_request.lora_path)
    self.hold(lora_request.lora_int_id, record)
    return record


def _head_forgotten(stock):
    return lambda request, name, config: stock(request, name, replace(config, adapts_head=False))


_NO_SHARED_HASHES = _swap("prefix_hash:BasePrefixes.base_blocks", lambda stock: lambda self, request: 0)
_BGMV = ("BGMV_SHRINK", "BGMV_EXPAND", "BGMV_EXPAND_SLICE")
_SEARCH = "activation_source:last_occurrence"
_MASK = "token_mapping:mask_tokens"
_NEW = "test_new_weights.py"
_HITS = "test_shared.py::test_an_adapter_hits_the_base_up_to_the_last_block_before_its_activation"
_PEFT = "test_right.py::test_activation_is_where_peft_finds_it"
_SALT = "test_isolated.py::test_cache_salt_separates_tenants"
_SAME_PATH = f"{_NEW}::test_new_weights_at_the_same_path_under_the_same_name_reuse_nothing"
_HASH = "test_hash_sharing.py"
_IDENTICAL = "test_identical.py::test_prefix_kv_is_the_bases_and_differs_from_the_activation_on"
_TABLE: list[tuple[str, Plant, str]] = [
    ("activation_one_early", _swap(_SEARCH, _shifted(-1)), f"{_IDENTICAL}[64-adapted0-linear]"),
    ("activation_one_late", _swap(_SEARCH, _shifted(1)), f"{_PEFT}[overlapping]"),
    ("first_occurrence", _swap(_SEARCH, lambda stock: _first_occurrence), f"{_PEFT}[repeated]"),
    (
        "missing_invocation_accepted",
        _swap(_SEARCH, lambda stock: lambda ids, tokens: stock(ids, tokens) or 0),
        "test_regimes.py::test_a_prompt_without_invocation_is_refused_and_the_engine_lives",
    ),
    (
        "embedded_positions_searched",
        _swap("activation_source:_searchable_ids", lambda stock: lambda request, name: request.prompt_token_ids),
        "test_right.py::test_an_embedded_position_is_no_invocation_token",
    ),
    (
        "hash_without_mask",
        _swap(_MASK, lambda stock: lambda tokens, rows, scheduled: tokens),
        f"{_IDENTICAL}[70-adapted2-wide]",
    ),
    ("mask_without_hash", _both(_as_stock("EXTRA_KEYS"), _NO_SHARED_HASHES), f"{_HITS}[64]"),
    (
        "block_rounded_up",
        _swap("prefix_hash:shareable_blocks", lambda stock: lambda index, block: -(-index // block)),
        f"{_HITS}[65]",
    ),
    (
        "salt_dropped_from_base_blocks",
        _both(_swap("prefix_hash:_BaseView.cache_salt", lambda stock: None), _NO_SHARED_HASHES),
        f"{_SALT}[linear]",
    ),
    (
        "salt_dropped_from_shared_hashes",
        _swap("prefix_hash:PrefixKey", lambda stock: lambda salt, ids: ids),
        f"{_SALT}[None]",
    ),
    (
        "salt_dropped_from_whole_prompts",
        _swap("prefix_hash:PrefixKey", lambda stock: lambda salt, ids: stock(salt if len(ids) < 9 else None, ids)),
        f"{_HASH}::test_tenants_whose_prompts_diverge_never_share",
    ),
    (
        "shared_hashes_without_comparing",
        _swap("prefix_hash:BasePrefixes.shared", lambda stock: _without_comparing),
        f"{_HASH}::test_shared_hashes_equal_stock[0-None]",
    ),
    (
        "shared_hashes_of_images",
        _swap("prefix_hash:BasePrefixes.base_blocks", _by_ids_alone),
        f"{_HASH}::test_what_is_no_token_is_never_taken_from_a_prompt_of_tokens[mm_features]",
    ),
    (
        "multimodal_keys_dropped",
        _swap("prefix_hash:_BaseView.mm_features", lambda stock: []),
        "test_isolated.py::test_multimodal_and_prompt_embeds_keys_stay_in_every_block",
    ),
    ("weights_key_dropped", _adapted_key(weights_digest=""), f"{_SAME_PATH}[aLoRA]"),
    ("weights_key_dropped_for_plain_lora", _adapted_key(weights_digest=""), f"{_SAME_PATH}[plain]"),
    (
        "activation_key_dropped",
        _adapted_key(start=0),
        "test_shared.py::test_two_invocations_in_one_block_share_only_what_is_before_it[0]",
    ),
    (
        "changed_files_unnoticed",
        _swap("adapter_record:AdapterRecord.unchanged", lambda stock: lambda self: True),
        f"{_NEW}::test_weights_changed_under_a_loaded_adapter_are_refused",
    ),
    (
        "workers_know_the_users_ids",
        _carried("lora_int_id"),
        f"{_NEW}::test_new_weights_under_an_id_answer_for_themselves[removed_and_added]",
    ),
    (
        "workers_load_the_users_files",
        _carried("lora_path"),
        f"{_NEW}::test_what_was_accepted_is_loaded_whatever_the_files_are_by_then",
    ),
    (
        "copies_never_deleted",
        _swap("lora_ids:Records.sweep", lambda stock: lambda self: None),
        f"{_NEW}::test_an_aborted_request_leaves_no_copy_behind",
    ),
    (
        "in_place_by_a_request",
        _swap("lora_ids:Records.of", lambda stock: _in_place_by_a_request),
        f"{_NEW}::test_a_request_loads_nothing_in_place[aLoRA]",
    ),
    (
        "head_logprobs_answered",
        _swap("activation_source:require_accepted", _head_forgotten),
        "test_right.py::test_prompt_logprobs_of_an_adapted_head_are_refused",
    ),
    (
        "positions_of_the_step_ignored",
        _swap("compat:v1_rows", lambda stock: lambda runner, batch: [(lora, 0) for lora, _ in stock(runner, batch)]),
        "test_shared.py::test_cached_equals_uncached_to_the_bit[64-linear]",
    ),
    (
        "plain_lora_masked_off",
        _swap(_MASK, _plain_masked_off),
        "test_right.py::test_adapters_of_all_kinds_answer_right_in_one_batch",
    ),
    ("v2_unmasked", _as_stock("V2_LORA_INPUTS"), "test_token_mapping.py::test_v2_adapts_from_the_activation_on[24-40]"),
    (
        "v2_positions_wrong",
        _swap(
            "compat:v2_computed_tokens", lambda stock: lambda step: {new.req_id: 0 for new in step.scheduled_new_reqs}
        ),
        "test_token_mapping.py::test_v2_positions_are_the_schedulers",
    ),
    (
        "cpu_kernels_as_stock",
        _as_stock(*_BGMV),
        "test_right.py::test_base_tokens_keep_the_base_when_every_slot_is_full",
    ),
    (
        "any_runner_taken_for_masked",
        _swap("engine_check:_masks", lambda stock: lambda holder, name: True),
        "test_fails_closed.py::test_an_engine_whose_runner_is_not_masked_refuses",
    ),
    (
        "self_test_left_out",
        _swap("self_test:run_self_test", lambda stock: lambda: None),
        "test_fails_closed.py::test_hash_and_mask_go_in_together_or_not_at_all[mask]",
    ),
]
FAULTS = [(name, plant, f"{HERE}/{test}") for name, plant, test in _TABLE]
