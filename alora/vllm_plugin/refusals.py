"""How the engine core's refusal of a prompt reaches the user who waits for an answer.

vLLM answers HTTP 500 without a word for whatever the core refuses. A refusal of the prompt, or of the adapter as it is,
travels as the stop reason of an output instead, and is raised where the user waits: HTTP 400 or 409, with the reason.
"""

import functools
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat

_ValidationError: Any = compat.validation_error_class()
_StatusError: Any = compat.status_error_class()
_CONFLICT = "409 "  # how the stop reason of an adapter's refusal begins


class RefusedRequest(_ValidationError, AdapterError):
    """A request that no aLoRA can serve: HTTP 400 from vLLM's server, an AdapterError to everyone else."""


class RefusedAdapter(_StatusError, AdapterError):
    """An adapter that does not answer as it is, as when its files changed: HTTP 409."""

    def __init__(self, why: str) -> None:
        Exception.__init__(self, why)
        self.message, self.http_status, self.parameter, self.value = why, HTTPStatus.CONFLICT, None, None


class RefusedPrompt(AdapterError):
    """The adapter and its weights are in order; the prompt, or what is asked of it, is not."""


def engine_refuse_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineCoreProc._handle_request_preproc_error`` that tells the front end what the core refuses."""

    @functools.wraps(original)
    def _handle_request_preproc_error(self: Any, request: Any) -> Any:
        error = sys.exc_info()[1]
        if not isinstance(error, AdapterError):
            return original(self, request)
        kind = "" if isinstance(error, RefusedPrompt) else _CONFLICT
        return compat.send_refusal(self, request, f"{kind}{error}")

    return _handle_request_preproc_error


def process_outputs_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``OutputProcessor.process_outputs`` that raises the engine core's refusals where their users wait."""

    @functools.wraps(original)
    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        refused = compat.sent_refusals(self, engine_core_outputs)  # the original forgets what has ended
        processed = original(self, engine_core_outputs, *args, **kwargs)
        for queue, why in refused:
            conflict = why.startswith(_CONFLICT)
            queue.put(RefusedAdapter(why.removeprefix(_CONFLICT)) if conflict else RefusedRequest(why))
        return processed

    return process_outputs


def async_init_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``AsyncLLM`` whose requests wait for the engine core's word on their prompts."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.input_processor._alora_core_decides = True

    return __init__


def core_decides(processor: Any) -> bool:
    """Whether the requests of an ``InputProcessor`` wait for the engine core's word on their prompts."""
    return getattr(processor, "_alora_core_decides", False)
