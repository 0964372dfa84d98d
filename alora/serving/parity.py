"""Golden rows on another engine: vLLM must give the answers that a bundle stores.

Kernels, and the dtype that the base is served in, round differently, so answers are compared within a tolerance that
belongs to the dtype; an engine that leaves the adapter out must exceed that tolerance, or the comparison means nothing.
"""

import math
from collections.abc import Callable, Sequence

import torch

from alora.bundle.golden import disagreement, tolerance
from alora.bundle.read import Bundle
from alora.identity.certificate import ControlRecord, ParityRecord
from alora.prompt.render import Prefix, Renderer, Suffix

OFF, PLAIN = "adapter silently off", "standard LoRA"
LabelLogits = Callable[["Prefix", Sequence["Suffix"], Sequence[str | None]], list[torch.Tensor]]


def parity(
    bundle: Bundle, renderer: Renderer, ask: LabelLogits, dtype: str, honest: str, controls: dict[str, str | None]
) -> ParityRecord:
    """Ask an engine for a bundle's golden rows, as ``honest`` and as each of ``controls``, which must differ.

    Args:
        ask: label log-probabilities of a prefix and suffixes under adapters by name (None: the base).
        dtype: what the engine computes in.
        honest: the name under which the engine has the bundle's adapter.
        controls: faulty adapters: what is wrong with each, and the engine's name for it.
    """
    stored_dtype = bundle.manifest.base.dtype
    bound = tolerance(dtype, stored_dtype)
    difference = _disagreement(bundle, renderer, ask, honest)
    seen = []
    for fault, name in controls.items():
        far = _disagreement(bundle, renderer, ask, name)
        seen.append(ControlRecord(fault, far > bound, f"golden rows: differ by {far:.2e}"))
    passed = difference <= bound and all(control.caught for control in seen)
    finite = difference if math.isfinite(difference) else None
    return ParityRecord(len(bundle.golden), dtype, stored_dtype, finite, bound, passed, tuple(seen))


def _disagreement(bundle: Bundle, renderer: Renderer, ask: LabelLogits, name: str | None) -> float:
    answers = []
    for row in bundle.golden:
        (logits_L,) = ask(renderer.prefix(row.conversation), [bundle.suffix], [name])
        answers.append(logits_L.tolist())
    return disagreement(bundle.golden, answers)
