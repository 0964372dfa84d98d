"""Every private vLLM name that the plugin touches, and the vLLM versions it was made for.

Nothing else in ``alora`` knows where a vLLM symbol lives or what a vLLM object's attribute is called. A symbol that has
moved, or whose parameters have another name or order, raises :class:`Incompatible`, and the plugin stays out.

Run on vLLM 0.27.1, 0.29.0, 0.31.0 and 0.32.0 on CPUs, and 0.26.0 on a GPU; read in 0.33.0.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

OLDEST = (0, 26)
NEWEST = (0, 33)
KEYED_BY_BLOCK_HASH = ("OffloadingConnector", "SimpleCPUOffloadConnector")


class Incompatible(Exception):
    """This vLLM is not one that the plugin knows; the message says what differs."""


@dataclass(frozen=True)
class Symbol:
    """A callable of vLLM: where it lives and how its parameters begin."""

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]

    @property
    def path(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))


def _function(module: str, name: str, parameters: str) -> Symbol:
    return Symbol(module, "", name, tuple(parameters.split()))


def _method(module: str, name: str, parameters: str) -> Symbol:
    owner, _, method = name.partition(".")
    return Symbol(module, owner, method, ("self", *parameters.split()))


_CORE = "vllm.v1.engine.core"
_CACHE = "vllm.v1.core.kv_cache_utils"
_WORKER = "vllm.v1.worker"
_OPS = "vllm.lora.ops.torch_ops.lora_ops"
_BGMV = "inputs lora_b_weights output_tensor lora_indices_tensor"

PEFT_VALIDATE = _method("vllm.lora.peft_helper", "PEFTHelper._validate_features", "")
PEFT_FROM_DIR = Symbol("vllm.lora.peft_helper", "PEFTHelper", "from_local_dir", ("lora_path",))
WORKER_LOAD = _method("vllm.lora.worker_manager", "WorkerLoRAManager._load_adapter", "lora_request")
ENGINE_INIT_CACHES = _method(_CORE, "EngineCore._initialize_kv_caches", "vllm_config")
ENGINE_PREPROCESS = _method(_CORE, "EngineCore.preprocess_add_request", "request")
ENGINE_ADD_REQUEST = _method(_CORE, "EngineCore.add_request", "request request_wave")
ENGINE_ADD_LORA = _method(_CORE, "EngineCore.add_lora", "lora_request")
ENGINE_REMOVE_LORA = _method(_CORE, "EngineCore.remove_lora", "lora_id")
ENGINE_PIN_LORA = _method(_CORE, "EngineCore.pin_lora", "lora_id")
ENGINE_LIST_LORAS = _method(_CORE, "EngineCore.list_loras", "")
ENGINE_WAKE_UP = _method(_CORE, "EngineCore.wake_up", "tags")
ENGINE_REFUSE = _method(_CORE, "EngineCoreProc._handle_request_preproc_error", "request")
PROCESS_OUTPUTS = _method(
    "vllm.v1.engine.output_processor", "OutputProcessor.process_outputs", "engine_core_outputs engine_core_timestamp"
)
ASYNC_INIT = _method("vllm.v1.engine.async_llm", "AsyncLLM.__init__", "vllm_config")
PROCESS_INPUTS = _method("vllm.v1.engine.input_processor", "InputProcessor.process_inputs", "request_id prompt params")
EXTRA_KEYS = _function(_CACHE, "generate_block_hash_extra_keys", "request start_token_idx end_token_idx start_mm_idx")
BLOCK_HASHER = _function(_CACHE, "get_request_block_hasher", "hash_block_size caching_hash_fn")
V1_ACTIVE_LORAS = _method(
    f"{_WORKER}.lora_model_runner_mixin",
    "LoRAModelRunnerMixin.set_active_loras",
    "input_batch num_scheduled_tokens num_sampled_tokens mapping_type",
)
V1_BATCH_INPUTS = _method(
    f"{_WORKER}.gpu_input_batch", "InputBatch.make_lora_inputs", "num_scheduled_tokens num_sampled_tokens"
)
V2_LORA_INPUTS = _method(
    f"{_WORKER}.gpu.lora_utils", "LoraState.make_lora_inputs", "req_ids idx_mapping num_scheduled_tokens"
)
V2_PREPARE_INPUTS = _method(f"{_WORKER}.gpu.model_runner", "GPUModelRunner.prepare_inputs", "scheduler_output")
V1_PROMPT_LOGPROBS = _method(
    f"{_WORKER}.gpu_model_runner", "GPUModelRunner._get_prompt_logprobs_dict", "hidden_states num_scheduled_tokens"
)
V2_PROMPT_LOGPROBS = _method(
    f"{_WORKER}.gpu.sample.prompt_logprob",
    "PromptLogprobsWorker.compute_prompt_logprobs",
    "logits_fn hidden_states input_batch",
)
HEAD_LOGITS = _method(
    "vllm.lora.layers.logits_processor", "LogitsProcessorWithLoRA._get_logits", "hidden_states lm_head"
)
ZEROED_BLOCKS = _method("vllm.v1.kv_cache_interface", "KVCacheConfig.needs_kv_cache_zeroing", "")
PUNICA_INIT = _method(
    "vllm.lora.punica_wrapper.punica_base", "PunicaWrapperBase.__init__", "max_num_batched_tokens max_batches"
)
BGMV_SHRINK = _function(_OPS, "bgmv_shrink", f"{_BGMV} scaling")
BGMV_EXPAND = _function(_OPS, "bgmv_expand", f"{_BGMV} add_inputs")
BGMV_EXPAND_SLICE = _function(_OPS, "bgmv_expand_slice", f"{_BGMV} slice_offset slice_size add_inputs")


def vllm_version() -> str | None:
    """The installed vLLM's own version string, or None when vLLM is not there."""
    try:
        return str(importlib.import_module("vllm.version").__version__)
    except ImportError:
        return None


def on_cpu() -> bool:
    """Whether this vLLM computes on a CPU."""
    return bool(_late("vllm.platforms", "current_platform").is_cpu())


def load_plugins() -> None:
    """Load plugins as vLLM does in each of its processes, with its own choice among them (``VLLM_PLUGINS``)."""
    _late("vllm.plugins", "load_general_plugins")()


def check_version(version: str | None) -> None:
    """Raise :class:`Incompatible` unless ``version`` lies in the range that the plugin was made for."""
    if version is None:
        raise Incompatible("vLLM is not installed; pip install 'alora-toolkit[vllm]'")
    head = version.split("+")[0].split(".")  # 0.32.0+cpu
    try:
        found = (int(head[0]), int(head[1]))
    except (IndexError, ValueError):
        raise Incompatible(f"vLLM calls itself {version!r}, which is not a version number") from None
    if not OLDEST <= found <= NEWEST:
        wanted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise Incompatible(f"vLLM {version} is outside {wanted}, which this alora was made for")


def holder(symbol: Symbol) -> Any:
    """The module or class that holds ``symbol``."""
    try:
        found = importlib.import_module(symbol.module)
    except ImportError as error:
        raise Incompatible(f"{symbol.module} cannot be imported: {error}") from error
    if symbol.owner:
        found = getattr(found, symbol.owner, None)
        if found is None:
            raise Incompatible(f"{symbol.module} has no {symbol.owner}")
    return found


def current(symbol: Symbol) -> Any:
    """The callable behind ``symbol``, its parameters checked."""
    home = holder(symbol)
    # Static: a property or classmethod is seen as what it is.
    found = inspect.getattr_static(home, symbol.name, None)
    if isinstance(found, classmethod):
        found = getattr(home, symbol.name)
    if isinstance(found, property):
        found = found.fget
    if not callable(found):
        raise Incompatible(f"{symbol.path} is not there")
    names = tuple(inspect.signature(found).parameters)
    if names[: len(symbol.parameters)] != symbol.parameters:
        raise Incompatible(f"{symbol.path} takes {names}, not {symbol.parameters}")
    return found


def copies_by_name(symbol: Symbol, original: Any) -> Iterator[Any]:
    """Modules of vLLM that imported the function ``symbol`` by its name, and so hold a copy of their own."""
    for name, module in list(sys.modules.items()):  # a list, since a lazy module may import while it is looked at
        if name.startswith("vllm.") and name != symbol.module and vars(module).get(symbol.name) is original:
            yield module


def _late(module: str, name: str) -> Any:
    """A name of vLLM's, which is imported when it is asked for: vLLM loads the plugin before much of itself."""
    return getattr(importlib.import_module(module), name)


def lora_request_class() -> Any:
    return _late("vllm.lora.request", "LoRARequest")


def validation_error_class() -> Any:
    """The error that vLLM's servers answer with HTTP 400."""
    return _late("vllm.exceptions", "VLLMValidationError")


def status_error_class() -> Any:
    """The error that vLLM's servers answer with the status that it has; an older vLLM, which has none, answers 400."""
    graceful = getattr(importlib.import_module("vllm.exceptions"), "GracefulHTTPError", None)
    return graceful or validation_error_class()


def peft_fields() -> frozenset[str]:
    """Keys of an ``adapter_config.json`` that this vLLM reads; it drops all others without a word."""
    return frozenset(_late("vllm.lora.peft_helper", "PEFTHelper").__dataclass_fields__)


def adapter_folder(lora_path: str) -> str:
    """Local folder of an adapter that may be named by a hub id, as vLLM itself resolves it."""
    return _late("vllm.lora.utils", "get_adapter_absolute_path")(lora_path)


def v1_rows(runner: Any, input_batch: Any) -> list[tuple[Any, int]]:
    """(LoRA request or None, tokens computed before this step) of every row of a V1 runner's batch, in order."""
    computed = input_batch.num_computed_tokens_cpu
    rows = input_batch.req_ids[: input_batch.num_reqs]
    return [(runner.requests[req_id].lora_request, int(computed[row])) for row, req_id in enumerate(rows)]


def v2_computed_tokens(scheduler_output: Any) -> dict[str, int]:
    """Tokens computed before this step, by request id, as the scheduler states them."""
    computed = {new.req_id: int(new.num_computed_tokens) for new in scheduler_output.scheduled_new_reqs}
    cached = scheduler_output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, map(int, cached.num_computed_tokens), strict=True))
    return computed


def engine_refusal(vllm_config: Any) -> str | None:
    """Why this engine's settings cannot carry aLoRA, or None."""
    lora, parallel = vllm_config.lora_config, vllm_config.parallel_config
    if getattr(lora, "specialize_active_lora", False):
        return "specialize_active_lora counts adapters without the base's own tokens; switch it off"
    if getattr(lora, "enable_tower_connector_lora", False):
        return "enable_tower_connector_lora adapts the encoder's tokens, which have no activation; switch it off"
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return "prefill context parallelism splits a prompt's positions over ranks; set it to 1"
    if getattr(vllm_config.model_config, "is_encoder_decoder", False):
        return "encoder-decoder models have no single prompt to activate in"
    connector = getattr(getattr(vllm_config, "kv_transfer_config", None), "kv_connector", None)
    if connector is not None and connector not in KEYED_BY_BLOCK_HASH:
        return f"{connector} may key KV by tokens alone; aLoRA needs one of {', '.join(KEYED_BY_BLOCK_HASH)}, or none"
    if getattr(vllm_config, "num_hash_lookahead_tokens", 0):
        return "this drafter makes a block's key depend on tokens after the block; use n-gram speculation, or none"
    return None


def prompt_logprobs() -> list[Symbol]:
    """What computes logprobs of prompt tokens in the model runners; later vLLMs have a third."""
    owner = V2_PROMPT_LOGPROBS.owner
    name = f"{owner}.compute_prompt_token_id_logprobs"
    third = _method(V2_PROMPT_LOGPROBS.module, name, "logits_fn hidden_states input_batch")
    return [V1_PROMPT_LOGPROBS, V2_PROMPT_LOGPROBS, *([third] if hasattr(holder(third), third.name) else [])]


def beam_search_sequence() -> Symbol:
    """What both beam searches, offline and of the servers, make of a prompt at first; its module has moved once."""
    modules = ("vllm.entrypoints.generate.beam_search.utils", "vllm.beam_search")
    found = next((module for module in modules if _spec(module) is not None), modules[0])
    return _method(found, "BeamSearchSequence.__init__", "")


def _spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of a parent
        return None


def unadapted_logits(head: Any, hidden_states: Any, lm_head: Any, *args: Any, **kwargs: Any) -> Any:
    """Logits of a ``LogitsProcessorWithLoRA`` without an adapter; a tied ``lm_head`` is wrapped, too."""
    return head.base_layer._get_logits(hidden_states, getattr(lm_head, "base_layer", lm_head), *args, **kwargs)


def model_runner(worker: Any) -> Any:
    """The model runner of a worker, or of the wrapper around it."""
    return worker.model_runner


def layer_widths(worker_manager: Any) -> dict[str, tuple[int | None, int | None]]:
    """Columns of A and rows of B by layer, as adapters name it; None: no linear layer, or this worker has a part."""
    manager, found = worker_manager._adapter_manager, {}
    for name, module in manager.modules.items():
        parts, stacked = manager.packed_modules.get(name, [name]), getattr(module, "lora_b_stacked", ())
        columns = getattr(getattr(module, "base_layer", None), "input_size", None)
        whole = columns is not None and getattr(module, "tp_size", None) == 1 and len(stacked) == len(parts)
        found |= {part: (columns, stacked[n].shape[-2] if whole else None) for n, part in enumerate(parts)}
    return found


def adapted_alone(worker_manager: Any) -> list[str] | None:
    """``lora_target_modules`` of this vLLM, the only layers that it adapts; None: all."""
    return getattr(worker_manager.lora_config, "target_modules", None)


def has_all_layers() -> bool:
    """Whether this worker's base has every layer: a stage of a pipeline has some."""
    return _late("vllm.distributed", "get_pp_group")().world_size == 1


def forget_adapters(worker: Any) -> None:
    """Let a worker load every adapter anew: what it holds as loaded may be gone from the device. Called inside it."""
    manager = getattr(model_runner(worker), "lora_manager", None)
    if manager is not None:
        manager.remove_all_adapters()


def load_adapter(engine: Any, lora_request: Any) -> None:
    """Have every worker of an engine core load an adapter, as ``EngineCore.add_lora`` does."""
    engine.model_executor.add_lora(lora_request)


def is_asleep(engine: Any) -> bool:
    """Whether the memory of an engine core's workers may be gone for now."""
    return bool(getattr(engine.model_executor, "is_sleeping", False))


def unload_adapter(engine: Any, number: int) -> None:
    """Have every worker of an engine core forget an adapter, as ``EngineCore.remove_lora`` does."""
    engine.model_executor.remove_lora(number)


def answers_by_itself(engine: Any) -> bool:
    """Whether an engine core is a process of its own, which must answer a request that it refuses."""
    return hasattr(engine, "_handle_request_preproc_error")


def refuse_request(engine: Any, request: Any) -> None:
    """Log the error that is being handled and answer the request with it: HTTP 500, whatever the error is."""
    engine._handle_request_preproc_error(request)


def send_refusal(engine: Any, request: Any, why: str) -> None:
    """End a request with an error that says why; vLLM's own errors never have a text for a stop reason."""
    output = _late("vllm.v1.engine", "EngineCoreOutput")(
        request.request_id, [], finish_reason=_late("vllm.v1.engine", "FinishReason").ERROR, stop_reason=why
    )
    outputs = _late("vllm.v1.engine", "EngineCoreOutputs")(finished_requests={request.request_id}, outputs=[output])
    engine.output_queue.put_nowait((request.client_index, outputs))


def sent_refusals(processor: Any, outputs: Iterable[Any]) -> list[tuple[Any, str]]:
    """The queues of the requests that :func:`send_refusal` ended, and why; a ``vllm.LLM`` has no queues."""
    found = [one for one in outputs if type(one.stop_reason) is str]
    if not found:  # as in nearly every step of the engine
        return []
    error = _late("vllm.v1.engine", "FinishReason").ERROR
    found = [one for one in found if one.finish_reason == error]
    states = [(processor.request_states.get(one.request_id), one.stop_reason) for one in found]
    return [(state.queue, why) for state, why in states if state is not None and state.queue is not None]


def engine_core(llm: Any) -> Any:
    """The engine core of a ``vllm.LLM`` that keeps it in this process."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is None:
        raise RuntimeError("the engine core is in another process: set VLLM_ENABLE_V1_MULTIPROCESSING=0 before vLLM")
    return core


def kv_tensors(core: Any) -> list[Any]:
    """The cache tensors of the one worker of an in-process engine, one per layer."""
    return list(model_runner(core.model_executor.driver_worker).kv_caches)


def kv_block_axis(core: Any, tensor: Any) -> int:
    """The axis of a cache tensor that counts blocks."""
    count = core.vllm_config.cache_config.num_gpu_blocks
    axis = next((axis for axis in (0, 1) if tensor.shape[axis] == count), None)
    if axis is None:
        raise RuntimeError(f"neither leading axis of a cache of shape {tuple(tensor.shape)} counts {count} blocks")
    return axis


def run_prompt(llm: Any, core: Any) -> Any:
    """Step the engine until its only request has computed its prompt; that request."""
    (request,) = core.scheduler.requests.values()
    while request.num_computed_tokens < request.num_prompt_tokens:  # chunked prefill takes several steps
        llm.llm_engine.step()
    return request


def request_blocks(core: Any, request: Any) -> list[int]:
    """Cache blocks of a running request, in order; one KV cache group only."""
    groups = core.scheduler.kv_cache_manager.get_block_ids(request.request_id)
    if len(groups) != 1:
        raise RuntimeError(f"the model has {len(groups)} KV cache groups; only one is supported here")
    return list(groups[0])


def abort_all(llm: Any, core: Any) -> None:
    """End every running request and let the engine take note."""
    llm.llm_engine.abort_request([request.request_id for request in core.scheduler.requests.values()], internal=True)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
