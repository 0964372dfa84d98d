"""The one place that finds a request's activation, and the patches that put it there.

It is found in the engine core when a request arrives, and travels from there on a copy of the LoRA request: hashing and
masking read the same number, so they cannot disagree. The core alone knows which weights a request means, whatever lies
on disk by now; a server's front end passes its refusal of a prompt on to the user. ``vllm.LLM``, which has nobody to
pass it on to later, looks for the activation before.
"""

import copy
import functools
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from alora.activation import last_occurrence
from alora.errors import AdapterError
from alora.vllm_plugin import compat, seeds
from alora.vllm_plugin.adapter_config import AdapterConfig, claims_alora, config_here
from alora.vllm_plugin.adapter_record import AdapterRecord
from alora.vllm_plugin.carried_request import carry
from alora.vllm_plugin.lora_ids import KEPT, Records
from alora.vllm_plugin.refusals import RefusedPrompt, RefusedRequest, core_decides
from alora.wire.weights import ASKED_WEIGHTS

_NOT_CHECKED = "the engine was not checked when it started"
_SHOWN = 20  # of an invocation's tokens in a refusal
_engines_here: list[weakref.ref[Any]] = []


def _searchable_ids(request: Any, name: str) -> Sequence[int]:
    """Prompt ids with embedded positions blanked out, so that a placeholder never counts as an invocation token."""
    ids, is_token = request.prompt_token_ids, getattr(request, "prompt_is_token_ids", None)
    if ids is None:
        raise RefusedPrompt(f"aLoRA adapter {name!r} cannot run on prompt_embeds alone: send token ids or text")
    if is_token is None:
        return ids
    # -1 is not a token id, so a placeholder cannot complete an invocation.
    return [token if known else -1 for token, known in zip(ids, is_token, strict=True)]


def find_activation(request: Any, name: str, tokens: Sequence[int]) -> int:
    """Index of the first adapted token of an ``EngineCoreRequest``; RefusedPrompt for one without an invocation."""
    if getattr(request, "resumable", False):
        raise RefusedPrompt(f"aLoRA adapter {name!r} cannot run on a prompt that is streamed in: send it whole")
    index = last_occurrence(_searchable_ids(request, name), tokens)
    if index is None:
        shown = ", ".join(map(str, tokens[:_SHOWN])) + ", ..." * (len(tokens) > _SHOWN)
        raise RefusedPrompt(
            f"aLoRA adapter {name!r}: its invocation tokens [{shown}] are not in the prompt "
            f"({len(request.prompt_token_ids)} tokens), so nothing would be adapted; end the prompt with the adapter's "
            "own instruction, and check that it is not truncated away"
        )
    return index


def record_of(
    engine: Any, lora_request: Any, in_place: bool = False, digest: str | None = None
) -> AdapterRecord | None:
    """The record of a LoRA request; None for a plain LoRA that stock vLLM handles: where this engine refuses aLoRA, or
    cannot read the adapter's files."""
    records, refusal = engine_records(engine), refusal_of(engine)
    if refusal is not None:
        if claims_alora(lora_request.lora_path):
            raise AdapterError(f"aLoRA adapter {lora_request.lora_name!r} is refused: {refusal}")
        return None
    try:
        return records.read(lora_request.lora_path) if in_place else records.of(lora_request, digest)
    except (AdapterError, OSError) as error:
        if records.known(lora_request.lora_int_id) is None and not claims_alora(lora_request.lora_path):
            return None
        raise AdapterError(str(error)) from error


def _asked_weights(request: Any) -> str | None:
    """The digest of what alone may answer the request, or None; AdapterError for what can be none."""
    extra = getattr(request.sampling_params, "extra_args", None)
    digest = extra.get(ASKED_WEIGHTS) if isinstance(extra, dict) else None
    if digest is not None and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
        raise AdapterError(f"{ASKED_WEIGHTS} is {digest!r:.80}, not the digest of weights: 64 hexadecimal digits")
    return digest


def carried_for(engine: Any, request: Any) -> Any:
    """What an ``EngineCoreRequest`` has for a LoRA request from here on: its weights and its activation fixed."""
    lora_request, digest = request.lora_request, _asked_weights(request)
    record = record_of(engine, lora_request, digest=digest)
    if record is None:
        if digest is not None:
            raise AdapterError(f"adapter {lora_request.lora_name!r}: nobody here can tell which weights it has")
        return lora_request
    activation = require_accepted(request, lora_request.lora_name, record.config)
    engine_records(engine).accept(lora_request.lora_int_id, record)
    return carry(lora_request, record, activation)


def require_accepted(request: Any, name: str, config: AdapterConfig) -> int:
    """The request's activation index, 0 for plain LoRA; RefusedPrompt for what no aLoRA can answer."""
    asked = (getattr(request.sampling_params, key, None) for key in ("prompt_logprobs", "prompt_logprob_token_ids"))
    if config.adapts_head and any(one is not None for one in asked):
        raise RefusedPrompt(
            f"adapter {name!r} adapts lm_head, and vLLM cannot tell which rows of prompt_logprobs (echo with logprobs) "
            "are its own; ask without them"
        )
    return find_activation(request, name, config.invocation_tokens) if config.is_alora else 0


def preprocess_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.preprocess_add_request`` on a request that carries its activation."""

    @functools.wraps(original)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        if request.lora_request is None:
            return original(self, request)
        # Where the engine core lives in the front end's process, process_inputs has found it already.
        found_for, carried = getattr(self, "_alora_found", (None, None))
        self._alora_found = (None, None)
        own = copy.copy(request)  # the caller keeps its request, and may send it again
        own.lora_request = carried if found_for is request else carried_for(self, request)
        return original(self, own)

    return preprocess_add_request


def _load_first(engine: Any, lora_request: Any) -> None:
    """Have the workers load what they never saw: an error in the step that would load it ends the engine."""
    record = getattr(lora_request, "record", None)
    if record is None or record.loaded or compat.is_asleep(engine):
        return  # a sleeper's workers load when they step again
    try:
        compat.load_adapter(engine, lora_request)
    except Exception:
        engine_records(engine).withdraw(record)
        raise
    record.loaded = True


def add_request_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.add_request``, in the thread that steps, which refuses a request whose adapter does not load."""

    @functools.wraps(original)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _load_first(self, request.lora_request)
        except Exception:
            if not compat.answers_by_itself(self):
                raise
            return compat.refuse_request(self, request)
        return original(self, request, *args, **kwargs)

    return add_request


def note_engine(engine: Any, refusal: str | None) -> None:
    """Remember an engine core of this process, and why it refuses aLoRA, if it does."""
    engine._alora_refusal = refusal
    _engines_here.append(weakref.ref(engine))  # weak: an engine that is deleted must be freed


def refusal_of(engine: Any) -> str | None:
    """Why this engine core refuses aLoRA, or None; one that was never checked refuses."""
    return getattr(engine, "_alora_refusal", _NOT_CHECKED)


def engine_records(engine: Any) -> Records:
    """The adapters known to this engine core."""
    if not hasattr(engine, "_alora_records"):
        loaded = getattr(engine.vllm_config.lora_config, "max_cpu_loras", None) or 0
        engine._alora_records = Records(max(KEPT, 2 * loaded))  # more than the workers hold
    return engine._alora_records


def add_lora_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.add_lora`` of a record; with ``load_inplace`` of the files as they are now.

    Requests that were accepted with other weights under this id end with those.
    """

    @functools.wraps(original)
    def add_lora(self: Any, lora_request: Any) -> Any:
        records, lora_id = engine_records(self), lora_request.lora_int_id
        record = record_of(self, lora_request, lora_request.load_inplace)
        if record is None:
            return original(self, lora_request)
        loaded = original(self, carry(lora_request, record, 0))  # 0: loading has no prompt
        record.loaded = True
        before = records.known(lora_id)
        records.hold(lora_id, record)  # after the workers took it: an error leaves the id as it was
        if before is not None and not records.held(before):
            compat.unload_adapter(self, before.number)
        records.sweep()
        return loaded

    return add_lora


def pin_lora_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.pin_lora`` by the workers' number for an id."""

    @functools.wraps(original)
    def pin_lora(self: Any, lora_id: int) -> Any:
        return original(self, engine_records(self).number(lora_id))

    return pin_lora


def list_loras_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.list_loras`` by its users' ids."""

    @functools.wraps(original)
    def list_loras(self: Any) -> set[int]:
        return engine_records(self).ids(original(self))

    return list_loras


def remove_lora_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.remove_lora`` that frees the id for another adapter; weights of another id, too, stay loaded."""

    @functools.wraps(original)
    def remove_lora(self: Any, lora_id: int) -> Any:
        records = engine_records(self)
        known = records.known(lora_id)
        shared = known is not None and records.held(known, but=lora_id)
        removed = shared or original(self, records.number(lora_id))  # the workers know numbers alone
        records.forget(lora_id)
        records.sweep()
        return removed

    return remove_lora


def wake_up_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCore.wake_up`` after which every adapter is loaded again."""

    @functools.wraps(original)
    def wake_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.vllm_config.lora_config is not None:
            # A sleep of level 2 discards what the slots hold, and the workers go on to call them filled.
            self.model_executor.collective_rpc(compat.forget_adapters)
        return original(self, *args, **kwargs)

    return wake_up


def _check_here(vllm_config: Any, request: Any, later: bool = False) -> None:
    here = (engine() for engine in _engines_here)
    engine = next((engine for engine in here if engine is not None and engine.vllm_config is vllm_config), None)
    if engine is not None:
        carried = carried_for(engine, request)
        try:
            _load_first(engine, carried)
        except Exception as error:  # whatever vLLM raises for files that it does not take
            raise AdapterError(str(error)) from error
        engine._alora_found = (request, carried)
        return
    _asked_weights(request)
    config = None if later else config_here(request.lora_request.lora_path)
    if config is not None:  # else not readable from here
        require_accepted(request, request.lora_request.lora_name, config)


def process_inputs_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``InputProcessor.process_inputs`` that refuses, as a user error, what the engine core would refuse."""
    # Where the engine core lives in this process, a refusal after this point would leave the front end waiting.

    @functools.wraps(original)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        if why := seeds.refusal(getattr(request, "sampling_params", None)):
            raise RefusedRequest(why)
        lora_request = getattr(request, "lora_request", None)
        if lora_request is None:
            return request
        try:
            _check_here(self.vllm_config, request, core_decides(self))
        except (AdapterError, OSError) as error:
            raise RefusedRequest(str(error)) from error
        return request

    return process_inputs


def beam_search_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``BeamSearchSequence`` that refuses an aLoRA: each step sends the answer so far as prompt, where an invocation
    would move the activation. PEFT refuses it, too.
    """

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        lora_request = self.lora_request
        if lora_request is not None and not self.logprobs and claims_alora(lora_request.lora_path):  # the first
            raise RefusedRequest(
                f"aLoRA adapter {lora_request.lora_name!r} cannot run under beam search, whose answers become prompts; "
                "ask without it"
            )

    return __init__
