"""Deliberate faults in the plugin, and for each the test that must fail because of it.

Run as ``python -m tests.vllm.planted_faults OUT.json``: one process and one engine for all of them. Each named test is
run first as things are (it must pass), then with the fault planted. ``test_planted_faults.py`` reads the outcome.
"""

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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


def _shifted_activation(by: int) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        from alora.vllm_plugin import activation_source

        stock = activation_source.last_occurrence

        def shifted(ids, tokens):
            found = stock(ids, tokens)
            return None if found is None else max(found + by, 0)

        patch.setattr(activation_source, "last_occurrence", shifted)

    return plant


def first_occurrence(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import activation_source

    def first(ids, tokens):
        width = len(tokens)
        places = (at for at in range(len(ids) - width + 1) if tuple(ids[at : at + width]) == tuple(tokens))
        return next(places, None)

    patch.setattr(activation_source, "last_occurrence", first)


def hash_without_mask(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import token_mapping

    patch.setattr(token_mapping, "mask_tokens", lambda tokens, rows, scheduled: tokens)


def mask_without_hash(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import compat, prefix_hash

    _everywhere(patch, compat.EXTRA_KEYS, compat.current(compat.EXTRA_KEYS).__wrapped__)
    patch.setattr(prefix_hash.BasePrefixes, "base_blocks", lambda self, request: 0)


def block_rounded_up(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import prefix_hash

    patch.setattr(prefix_hash, "shareable_blocks", lambda index, block: -(-index // block))


def salt_dropped_from_base_blocks(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import prefix_hash

    patch.setattr(prefix_hash._BaseView, "cache_salt", None, raising=False)
    patch.setattr(prefix_hash.BasePrefixes, "base_blocks", lambda self, request: 0)


def salt_dropped_from_shared_hashes(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import prefix_hash

    patch.setattr(prefix_hash, "PrefixKey", lambda salt, ids: ids)


def shared_hashes_without_comparing(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import prefix_hash

    def shared(self, request, blocks):
        known = self._known(self._key(request, 1))
        return known[1][:blocks] if known else []

    patch.setattr(prefix_hash.BasePrefixes, "shared", shared)


def shared_hashes_of_images(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import prefix_hash

    stock = prefix_hash.BasePrefixes.base_blocks

    def by_ids_alone(self, request):
        seen = SimpleNamespace(
            mm_features=[],
            prompt_embeds=None,
            prompt_token_ids=request.prompt_token_ids,
            lora_request=request.lora_request,
        )
        return stock(self, seen)

    patch.setattr(prefix_hash.BasePrefixes, "base_blocks", by_ids_alone)


def multimodal_keys_dropped(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import prefix_hash

    patch.setattr(prefix_hash._BaseView, "mm_features", [], raising=False)


def _adapted_keys(changed: Callable[[Any], Any]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        from alora.vllm_plugin import prefix_hash

        stock = prefix_hash.adapted_key

        def adapted_key(*block):
            key = stock(*block)
            return None if key is None else changed(key)

        patch.setattr(prefix_hash, "adapted_key", adapted_key)

    return plant


weights_key_dropped = _adapted_keys(lambda key: key._replace(weights_digest=""))
activation_key_dropped = _adapted_keys(lambda key: key._replace(start=0))


def embedded_positions_searched(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import activation_source

    patch.setattr(activation_source, "_searchable_ids", lambda request, name: request.prompt_token_ids)


def positions_of_the_step_ignored(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import compat

    stock = compat.v1_rows
    patch.setattr(compat, "v1_rows", lambda runner, batch: [(lora, 0) for lora, _ in stock(runner, batch)])


def plain_lora_masked_off(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import token_mapping

    stock = token_mapping.mask_tokens

    def masked(tokens, rows, scheduled):
        if any(lora is not None and lora.activation_index for lora, _ in rows):
            rows = [
                (_never_active(lora) if lora is not None and not lora.activation_index else lora, computed)
                for lora, computed in rows
            ]
        return stock(tokens, rows, scheduled)

    patch.setattr(token_mapping, "mask_tokens", masked)


def _never_active(lora: Any) -> Any:
    """A plain LoRA request that is taken for one that never activates."""
    never = copy.copy(lora)
    never.activation_index = 10**6
    return never


def v2_unmasked(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import compat

    _everywhere(patch, compat.V2_LORA_INPUTS, compat.current(compat.V2_LORA_INPUTS).__wrapped__)


def v2_positions_wrong(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import compat

    patch.setattr(compat, "v2_computed_tokens", lambda step: {new.req_id: 0 for new in step.scheduled_new_reqs})


def cpu_kernels_as_stock(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import compat

    for symbol in (compat.BGMV_SHRINK, compat.BGMV_EXPAND, compat.BGMV_EXPAND_SLICE):
        _everywhere(patch, symbol, compat.current(symbol).__wrapped__)


def changed_files_unnoticed(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin.adapter_record import AdapterRecord

    patch.setattr(AdapterRecord, "unchanged", lambda self: True)


def _carried(**values: Callable[[Any], Any]) -> Plant:
    """Requests that keep, by field, something of the user's own request."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        from alora.vllm_plugin import activation_source

        stock = activation_source.carry

        def carry(lora_request, record, activation):
            carried = stock(lora_request, record, activation)
            for field, value in values.items():
                setattr(carried, field, value(lora_request))
            return carried

        patch.setattr(activation_source, "carry", carry)

    return plant


workers_know_the_users_ids = _carried(lora_int_id=lambda lora: lora.lora_int_id)
workers_load_the_users_files = _carried(lora_path=lambda lora: lora.lora_path)


def copies_never_deleted(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin.adapter_record import Records

    patch.setattr(Records, "sweep", lambda self: None)


def in_place_by_a_request(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin.adapter_record import Records

    def taken(self, lora_request):
        record = self.read(lora_request.lora_path)
        self.hold(lora_request.lora_int_id, record)
        return record

    patch.setattr(Records, "of", taken)


def head_logprobs_answered(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import activation_source

    stock = activation_source.require_accepted
    patch.setattr(
        activation_source,
        "require_accepted",
        lambda request, name, config: stock(request, name, replace(config, adapts_head=False)),
    )


def missing_invocation_accepted(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import activation_source

    stock = activation_source.last_occurrence
    patch.setattr(activation_source, "last_occurrence", lambda ids, tokens: stock(ids, tokens) or 0)


def any_runner_taken_for_masked(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import engine_check

    patch.setattr(engine_check, "_masks", lambda holder, name: True)


def self_test_left_out(patch: pytest.MonkeyPatch) -> None:
    from alora.vllm_plugin import self_test

    patch.setattr(self_test, "run_self_test", lambda: None)


def _fault(plant: Plant, test: str, name: str | None = None) -> tuple[str, Plant, str]:
    return name or plant.__name__, plant, f"{HERE}/{test}"


_HITS = "test_shared.py::test_an_adapter_hits_the_base_up_to_the_last_block_before_its_activation"
_PEFT = "test_right.py::test_activation_is_where_peft_finds_it"
_SALT = "test_isolated.py::test_cache_salt_separates_tenants"
_SAME_PATH = "test_new_weights.py::test_new_weights_at_the_same_path_under_the_same_name_reuse_nothing"
_RUNNING = "test_new_weights.py::test_a_running_request_ends_with_the_weights_it_began_with"
_TENANTS = "test_hash_sharing.py::test_tenants_whose_prompts_diverge_never_share"
_IDENTICAL = "test_identical.py::test_prefix_kv_is_the_bases_and_differs_from_the_activation_on"
FAULTS = [
    _fault(_shifted_activation(-1), f"{_IDENTICAL}[64-adapted0-linear]", "activation_one_early"),
    _fault(_shifted_activation(1), f"{_PEFT}[overlapping]", "activation_one_late"),
    _fault(first_occurrence, f"{_PEFT}[repeated]"),
    _fault(
        missing_invocation_accepted, "test_regimes.py::test_a_prompt_without_invocation_is_refused_and_the_engine_lives"
    ),
    _fault(hash_without_mask, f"{_IDENTICAL}[70-adapted2-wide]"),
    _fault(mask_without_hash, f"{_HITS}[64]"),
    _fault(block_rounded_up, f"{_HITS}[65]"),
    _fault(salt_dropped_from_base_blocks, f"{_SALT}[linear]"),
    _fault(salt_dropped_from_shared_hashes, f"{_SALT}[None]"),
    _fault(salt_dropped_from_shared_hashes, _TENANTS, "salt_dropped_from_whole_prompts"),
    _fault(
        shared_hashes_of_images,
        "test_hash_sharing.py::test_what_is_no_token_is_never_taken_from_a_prompt_of_tokens[mm_features]",
    ),
    _fault(
        activation_key_dropped,
        "test_shared.py::test_two_invocations_in_one_block_share_only_what_is_before_it[0]",
        "activation_key_dropped",
    ),
    _fault(embedded_positions_searched, "test_right.py::test_an_embedded_position_is_no_invocation_token"),
    _fault(shared_hashes_without_comparing, "test_hash_sharing.py::test_shared_hashes_equal_stock[0-None]"),
    _fault(multimodal_keys_dropped, "test_isolated.py::test_multimodal_and_prompt_embeds_keys_stay_in_every_block"),
    _fault(weights_key_dropped, f"{_SAME_PATH}[aLoRA]", "weights_key_dropped"),
    _fault(weights_key_dropped, f"{_SAME_PATH}[plain]", "weights_key_dropped_for_plain_lora"),
    _fault(changed_files_unnoticed, "test_new_weights.py::test_weights_changed_under_a_loaded_adapter_are_refused"),
    _fault(workers_know_the_users_ids, f"{_RUNNING}[removed_and_added-aLoRA]", "workers_know_the_users_ids"),
    _fault(
        workers_load_the_users_files,
        "test_new_weights.py::test_what_was_accepted_is_loaded_whatever_the_files_are_by_then",
        "workers_load_the_users_files",
    ),
    _fault(copies_never_deleted, "test_new_weights.py::test_an_aborted_request_leaves_no_copy_behind"),
    _fault(in_place_by_a_request, "test_new_weights.py::test_a_request_loads_nothing_in_place"),
    _fault(head_logprobs_answered, "test_right.py::test_prompt_logprobs_of_an_adapted_head_are_refused"),
    _fault(positions_of_the_step_ignored, "test_shared.py::test_cached_equals_uncached_to_the_bit[64-linear]"),
    _fault(plain_lora_masked_off, "test_right.py::test_adapters_of_all_kinds_answer_right_in_one_batch"),
    _fault(v2_unmasked, "test_token_mapping.py::test_v2_adapts_from_the_activation_on[24-40]"),
    _fault(v2_positions_wrong, "test_token_mapping.py::test_v2_positions_are_the_schedulers"),
    _fault(cpu_kernels_as_stock, "test_right.py::test_base_tokens_keep_the_base_when_every_slot_is_full"),
    _fault(any_runner_taken_for_masked, "test_fails_closed.py::test_an_engine_whose_runner_is_not_masked_refuses"),
    _fault(self_test_left_out, "test_fails_closed.py::test_hash_and_mask_go_in_together_or_not_at_all[mask]"),
]


class _Outcomes:
    """A pytest plugin that keeps what became of each test."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = f"{report.when}: {report.longreprtext[-300:]}"
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def outcome(tests: list[str]) -> _Outcomes:
    found = _Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no", *tests], plugins=[found])
    return found


def main(out: str) -> None:
    sound = outcome(sorted({test for _, _, test in FAULTS}))
    told: dict[str, Any] = {"sound": {"passed": sound.passed, "failed": sound.failed}, "faults": {}}
    for name, plant, test in FAULTS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = outcome([test])
        told["faults"][name] = {"test": test, "failed": found.failed.get(test), "passed": found.passed}
    told["after"] = outcome([FAULTS[0][2]]).failed
    Path(out).write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
