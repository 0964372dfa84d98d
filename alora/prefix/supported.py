"""Whether a model class can run as the packed forward: tried on a short prompt before anything is built on it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from alora.errors import AdapterError, BaseError

CHECK_TOKENS = 12
_WINDOW = 6  # the last token of the check then sees a part of its prefix, and not all of it
_WIDTH = re.compile(r"(window(_size)?|attention_chunk_size)$")
_FAILURES = (ValueError, IndexError, RuntimeError, AttributeError, TypeError, KeyError)
_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)
_REMEDY = "use a base whose layers all attend"
_BOUND, _HALF_BOUND = 1e-3, 0.25  # SmolLM2 in bfloat16 is at 0.04


def stock_answer(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Logits ``[V]`` of the stock model behind ``ids``.

    Raises:
        BaseError: the stock model itself fails, or a layer of it keeps something other than keys and values.
    """
    name = type(model).__name__
    try:
        output = model(input_ids=ids, use_cache=True)
    except torch.OutOfMemoryError:  # no matter of the class
        raise
    except _FAILURES as error:
        raise BaseError(
            f"{name} itself fails in {str(model.dtype).removeprefix('torch.')} on {model.device.type} "
            f"({type(error).__name__}: {error}); choose another base.dtype"
        ) from error
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise BaseError(f"{name} keeps no keys and values, so there is no prefix to share; {_REMEDY}")
    if odd := [index for index, one in enumerate(getattr(cache, "layers", [])) if type(one) not in _PLAIN]:
        raise BaseError(
            f"{name} keeps a state other than keys and values in layers {odd[:8]} (linear attention, convolution, an "
            f"index), which suffixes cannot share as a prefix; {_REMEDY}"
        )
    return output.logits[0, -1]


def require_same_answers(
    model: PreTrainedModel, wanted: torch.Tensor, packed: Callable[[], torch.Tensor], reached: set[int]
) -> None:
    """Require that the packed logits equal the stock model's (``wanted``), within a bound relative to their spread.

    Raises:
        BaseError: they differ, or the packed forward fails. The message names the layers missing from ``reached``: they
            do not call transformers' attention interface (bloom).
    """
    name, problem, cause = type(model).__name__, "", None
    try:
        found = packed()
        bound = _HALF_BOUND if wanted.dtype in (torch.bfloat16, torch.float16) else _BOUND
        spread = wanted.to(found.dtype) - wanted.to(found.dtype).mean()
        if not (found - wanted.to(found.dtype)).norm() <= bound * spread.norm():
            problem = f"its logits are {found[:3].tolist()} where the stock model's are {wanted[:3].tolist()}"
    except (
        AdapterError,
        BaseError,
        torch.OutOfMemoryError,
    ):  # the one names its cause; the other does not depend on the class
        raise
    except _FAILURES as error:
        problem, cause = f"{type(error).__name__}: {error}", error
    if not problem:
        return
    layers = sorted(set(range(model.config.get_text_config().num_hidden_layers)) - reached)
    if layers and (cause is None or not reached):  # a failure on the way keeps the layers behind it from being reached
        problem = f"layers {layers[:8]} do not call transformers' attention interface; {problem}"
    raise BaseError(
        f"{name} cannot run as alora's packed forward ({problem}); this model class is not supported: every layer must "
        "call transformers' attention interface with plain keys and values, and tell it its window"
    ) from cause


@contextmanager
def narrow_windows(model: PreTrainedModel) -> Iterator[None]:
    """Make every attention window and chunk shorter than the check's prompt, in the config and in the modules.

    A class that hides a part of the prefix by its mask alone (qwen2_moe, llama4), without passing the window to
    attention, then gives different logits. At its original width only a prompt longer than the window would show it.
    """
    holders: list[Any] = [model.config, model.config.get_text_config(), *model.modules()]
    changed: list[tuple[Any, str, int]] = []
    try:
        for holder in holders:
            for name, value in list(vars(holder).items()):
                if _WIDTH.search(name) and type(value) is int and value > _WINDOW:
                    changed.append((holder, name, value))
                    setattr(holder, name, _WINDOW)
        yield
    finally:
        for holder, name, value in changed:
            setattr(holder, name, value)
