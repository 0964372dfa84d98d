"""The one place that finds a request's activation, and the patches that put it there.

It is found in the engine core when a request arrives, and travels from there on a copy of the LoRA request: hashing and
masking read the same number, so they cannot disagree. The front end looks for it too, but only to refuse early, with a
message to the user, what the engine core would refuse anyway.
"""

import copy
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from alora.activation import last_occurrence
from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.vllm_plugin.adapter_record import AdapterRecord, Records, claims_alora, config_stamp
from alora.vllm_plugin.carried_request import carry

_ValidationError: Any = compat.validation_error_class()
_NOT_CHECKED = "the engine was not checked when it started"
_engines_here: weakref.WeakSet[Any] = weakref.WeakSet()


class RefusedRequest(_ValidationError, AdapterError):
    """A request that no aLoRA can serve: HTTP 400 from vLLM's server, an AdapterError to everyone else."""


def _searchable_ids(request: Any, name: str) -> Sequence[int]:
    """Prompt ids with embedded positions blanked out, so that a placeholder never counts as an invocation token."""
    ids, is_token = request.prompt_token_ids, getattr(request, "prompt_is_token_ids", None)
    if ids is None:
        raise AdapterError(f"aLoRA adapter {name!r} cannot run on prompt_embeds alone: send token ids or text")
    if is_token is None:
        return ids
    return [token if known else -1 for token, known in zip(ids, is_token, strict=True)]


def find_activation(request: Any, name: str, tokens: Sequence[int]) -> int:
    """Index of the first adapted token of an ``EngineCoreRequest``.

    Raises:
        AdapterError: the prompt has no invocation, has no token ids, or can still grow.
    """
    if getattr(request, "resumable", False):
        raise AdapterError(f"aLoRA adapter {name!r} cannot run on a prompt that is streamed in: send it whole")
    index = last_occurrence(_searchable_ids(request, name), tokens)
    if index is None:
        raise AdapterError(
            f"aLoRA adapter {name!r}: its invocation tokens {list(tokens)} are not in the prompt "
            f"({len(request.prompt_token_ids)} tokens), so nothing would be adapted; end the prompt with the adapter's "
            "own instruction, and check that it is not truncated away"
        )
    return index


def carrying(request: Any, records: Records, refusal: str | None) -> tuple[Any, AdapterRecord | None]:
    """A copy of an ``EngineCoreRequest`` whose LoRA request carries activation and weights key, and the record behind.

    Plain LoRA whose folder cannot be read here goes on unchanged, as vLLM would take it.
    """
    lora_request = request.lora_request
    try:
        record = records.of(lora_request)
    except (AdapterError, OSError) as error:
        if records.known(lora_request.lora_int_id) is None and not claims_alora(lora_request.lora_path):
            return request, None
        raise AdapterError(str(error)) from error
    activation = 0
    if record.is_alora:
        if refusal is not None:
            raise AdapterError(f"aLoRA adapter {lora_request.lora_name!r} is refused: {refusal}")
        activation = find_activation(request, lora_request.lora_name, record.invocation_tokens)
        require_answerable(request, lora_request.lora_name, record)
    carried = copy.copy(request)
    carried.lora_request = carry(lora_request, activation, records.key(lora_request.lora_int_id, record))
    return carried, record


def require_answerable(request: Any, name: str, record: AdapterRecord) -> None:
    """AdapterError for what vLLM answers with one adapter for a whole prompt, activation or not."""
    asked = getattr(request.sampling_params, "prompt_logprobs", None)
    if record.adapts_head and asked is not None:
        raise AdapterError(
            f"aLoRA adapter {name!r} adapts lm_head, and vLLM would compute prompt_logprobs (echo with logprobs) with "
            "it before the activation too; ask without them"
        )


def preprocess_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.preprocess_add_request`` on a request that carries its activation."""

    @functools.wraps(original)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        if request.lora_request is not None:
            records, lora_id = engine_records(self), request.lora_request.lora_int_id
            request, record = carrying(request, records, refusal_of(self))
            if record is not None and records.known(lora_id) is None:
                records.hold(lora_id, record)
        return original(self, request)

    return preprocess_add_request


def note_engine(engine: Any, refusal: str | None) -> None:
    """Remember an engine core of this process, and why it refuses aLoRA, if it does."""
    engine._alora_refusal = refusal
    _engines_here.add(engine)


def refusal_of(engine: Any) -> str | None:
    """Why this engine core refuses aLoRA, or None; one that was never checked refuses."""
    return getattr(engine, "_alora_refusal", _NOT_CHECKED)


def engine_records(engine: Any) -> Records:
    """The adapters known to this engine core."""
    if not hasattr(engine, "_alora_records"):
        engine._alora_records = Records()
    return engine._alora_records


def add_lora_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.add_lora`` that records what is loaded, once it is loaded."""

    @functools.wraps(original)
    def add_lora(self: Any, lora_request: Any) -> Any:
        records, lora_id = engine_records(self), lora_request.lora_int_id
        known = records.known(lora_id)
        try:
            record = records.read(lora_request.lora_path) if lora_request.load_inplace else records.of(lora_request)
        except (AdapterError, OSError) as error:
            if known is not None or claims_alora(lora_request.lora_path):
                raise AdapterError(str(error)) from error
            return original(self, lora_request)
        refusal = refusal_of(self)
        if record.is_alora and refusal is not None:
            raise AdapterError(f"aLoRA adapter {lora_request.lora_name!r} is refused: {refusal}")
        if known is not None and record.digest != known.digest:
            _require_idle(self, lora_request)
        loaded = original(self, lora_request)
        if lora_request.load_inplace or known is None:
            if not record.unchanged():
                records.forget(lora_id)
                raise AdapterError(
                    f"{record.path}: the adapter's files changed while they were being loaded; load it again"
                )
            records.hold(lora_id, record)
        return loaded

    return add_lora


def _require_idle(engine: Any, lora_request: Any) -> None:
    """AdapterError while requests of the id are alive: half of their tokens would be other weights'."""
    alive = sum(
        1
        for request in compat.live_requests(engine)
        if request.lora_request is not None and request.lora_request.lora_int_id == lora_request.lora_int_id
    )
    if alive:
        raise AdapterError(
            f"adapter {lora_request.lora_name!r} cannot get other weights in place while {alive} request(s) of it run; "
            "wait until they are answered, or load the new weights under a new name"
        )


def remove_lora_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.remove_lora`` that frees the id for another adapter."""

    @functools.wraps(original)
    def remove_lora(self: Any, lora_id: int) -> Any:
        removed = original(self, lora_id)
        engine_records(self).forget(lora_id)
        return removed

    return remove_lora


_seen_here = Records()  # by path alone: what is loaded is known only in the engine core
_claims_here: dict[str, tuple[Any, bool]] = {}


def _may_be_alora(path: str) -> bool:
    """:func:`claims_alora`, read again when the configuration changes: plain LoRA is not digested in the front end."""
    stamp = config_stamp(path)
    known = _claims_here.get(path)
    if known is None or known[0] != stamp:
        known = _claims_here[path] = (stamp, claims_alora(path))
    return known[1]


def _check_here(vllm_config: Any, request: Any) -> None:
    engine = next((found for found in _engines_here if found.vllm_config is vllm_config), None)
    if engine is not None:
        carrying(request, engine_records(engine), refusal_of(engine))
        return
    lora_request = request.lora_request
    if not _may_be_alora(lora_request.lora_path):
        return
    try:
        record = _seen_here.read(lora_request.lora_path)
    except (AdapterError, OSError):
        return  # not readable from here: the engine core decides
    find_activation(request, lora_request.lora_name, record.invocation_tokens)
    require_answerable(request, lora_request.lora_name, record)


def process_inputs_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``InputProcessor.process_inputs`` that refuses, as a user error, what the engine core would refuse.

    Where the engine core lives in this process, a refusal after this point would leave the front end waiting, so all
    of its checks are made here already.
    """

    @functools.wraps(original)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        lora_request = getattr(request, "lora_request", None)
        if lora_request is None:
            return request
        try:
            _check_here(self.vllm_config, request)
        except (AdapterError, OSError) as error:
            raise RefusedRequest(str(error)) from error
        return request

    return process_inputs
