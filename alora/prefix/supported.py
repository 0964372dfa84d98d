"""Whether a model class can run as the packed forward, told on a short prompt before anything is built on it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from alora.errors import BaseError

_FAILURES = (ValueError, IndexError, RuntimeError, AttributeError, TypeError, KeyError)


def require_same_answers(name: str, answers: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Hold the packed forward's logits, the second of ``answers()``, to those of the stock model class ``name``.

    Raises:
        BaseError: they differ, or the packed forward fails: the class keeps no KV (mamba), keeps a state beside it
            (qwen3_next, lfm2), calls attention in a way of its own (bloom), or has K and V of unequal width
            (deepseek_v3).
    """
    try:
        stock, ours = answers()
    except (BaseError, torch.OutOfMemoryError):  # the one names its cause; the other is no matter of the class
        raise
    except _FAILURES as error:
        raise BaseError(
            f"{name} cannot run as alora's packed forward ({type(error).__name__}: {error}); this model class is not "
            "supported: every layer must keep plain keys and values and call transformers' attention interface"
        ) from error
    bound = 1e-3 if stock.dtype in (torch.float32, torch.float64) else 0.1
    if not torch.allclose(stock.to(ours.dtype), ours, rtol=bound, atol=bound):
        raise BaseError(
            f"{name} computes its logits in a way that the packed forward does not reproduce (stock {stock.tolist()}, "
            f"packed {ours.tolist()}); this model class is not supported"
        )
