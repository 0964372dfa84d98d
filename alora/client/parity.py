"""Golden rows on another engine: vLLM must give the answers that a bundle stores.

Kernels, and the dtype that the base is served in, round differently, so answers are compared within a tolerance that
belongs to the dtype; an engine that leaves the adapter out must exceed that tolerance, or the comparison means nothing.
"""

import math
from collections.abc import Callable, Sequence

import torch

from alora.adapter.folder import AdapterWeights
from alora.base.load import LoadedBase
from alora.bundle.golden import disagreement, tolerance
from alora.bundle.read import Bundle
from alora.errors import AloraError
from alora.identity.certificate import ControlRecord, FindingRecord, ParityRecord
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix, Prompt, Renderer, Suffix

OFF, PLAIN = "adapter silently off", "standard LoRA"
LabelLogits = Callable[["Prefix", Sequence["Suffix"], Sequence[str | None]], list[torch.Tensor]]


def parity(
    bundle: Bundle, renderer: Renderer, ask: LabelLogits, dtype: str, honest: str, controls: dict[str, str | None]
) -> ParityRecord:
    """Ask an engine that computes in ``dtype`` for a bundle's golden rows: by ``ask``, under the adapter's name there
    (``honest``), and under that of each faulty one in ``controls`` (what is wrong → name), which must differ."""
    stored_dtype, prefixes = bundle.manifest.base.dtype, [renderer.prefix(row.conversation) for row in bundle.golden]
    bound = tolerance(dtype, stored_dtype)

    def differs(name: str | None) -> float:
        answers = [ask(prefix, [bundle.suffix], [name])[0].tolist() for prefix in prefixes]
        return disagreement(bundle.golden, answers)

    difference, far = differs(honest), {fault: differs(name) for fault, name in controls.items()}
    seen = [ControlRecord(fault, by > bound, f"golden rows: differ by {by:.2e}") for fault, by in far.items()]
    passed = difference <= bound and all(control.caught for control in seen)
    finite = difference if math.isfinite(difference) else None
    return ParityRecord(len(bundle.golden), dtype, stored_dtype, finite, bound, passed, tuple(seen))


def compare_answers(
    base: LoadedBase,
    weights: AdapterWeights,
    prompts: Sequence[Prompt],
    told: Sequence[torch.Tensor],
    off: Sequence[torch.Tensor],
) -> tuple[list[FindingRecord], str]:
    """An engine's answers ``told``, and ``off`` without the adapter, against those of the scorer here: what is too far
    off, and a note on what was compared."""
    try:
        with Scorer(base, [weights]) as scorer:
            own = [scorer.label_logits(prompt.prefix, [prompt.suffix])[0] for prompt in prompts]
    except AloraError as error:
        return [], f"answers were not compared with alora's own engine: {error}"
    bound, far = tolerance(base.dtype, base.dtype), [_furthest(own, answers) for answers in (told, off)]
    compared = f"answers on {len(prompts)} prompt(s) differ from alora's own engine by {far[0]:.1e}"
    if not far[0] <= bound:
        reason = "the adapter is absent in a part of the engine's modules, or its arithmetic is another"
        return [FindingRecord("answers", f"{compared} (tolerance {bound:g}): {reason}")], compared
    more = "" if base.dtype == "float32" else " (base.dtype=float32 tells more)"
    blind = "" if far[1] > bound else f", too little to tell that the whole adapter is there{more}"
    return [], f"{compared} (tolerance {bound:g}); without the adapter by {far[1]:.1e}{blind}"


def _furthest(own: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Largest difference of two log-probabilities over the labels, relative above 1; not a number where one is none."""
    differences = []
    for pair in zip(own, theirs, strict=True):
        first, second = (logits_L.float().log_softmax(0) for logits_L in pair)
        differences.append(((first - second).abs() / first.abs().clamp_min(1)).max())
    return float(torch.stack(differences).max())
