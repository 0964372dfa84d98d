"""vLLM's torch LoRA kernels, made to leave tokens without an adapter alone.

Two faults of the CPU path, both harmless until a batch mixes base and adapted tokens as aLoRA does:

* before 0.33 the kernels index the weights with -1 for "no adapter", which is the last slot: once every slot is filled,
  base tokens get that slot's adapter;
* the wrapper's segment buffers hold one segment per request, and an aLoRA request has two.
"""

import functools
from collections.abc import Callable
from typing import Any


def adapted_rows_only(original: Callable[..., Any]) -> Callable[..., Any]:
    """A ``bgmv_*`` kernel that computes and writes only the rows whose LoRA index is not -1.

    Rows without an adapter keep their bytes, so the base's values stay the base's bit for bit, and a long prefix costs
    nothing. Every caller either adds onto the layer's output or fills a buffer of zeros.
    """

    @functools.wraps(original)
    def kernel(inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **kwargs: Any) -> None:
        adapted = indices >= 0
        if bool(adapted.all()):  # plain LoRA alone: no copies
            original(inputs, weights, output, indices, *args, **kwargs)
            return
        rows = adapted.nonzero().squeeze(1)
        if rows.numel() == 0:
            return
        part = output[rows]  # a copy; the kernel adds onto it
        original(inputs[rows], weights, part, indices[rows], *args, **kwargs)
        output[rows] = part

    return kernel


def punica_init_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``PunicaWrapperBase.__init__`` with room for two segments per request: one of the base, one adapted."""

    @functools.wraps(original)
    def __init__(self: Any, max_num_batched_tokens: int, max_batches: int, *args: Any, **kwargs: Any) -> None:
        original(self, max_num_batched_tokens, 2 * max_batches, *args, **kwargs)

    return __init__
