"""``alora score artifact=DIR conversation.json``: the verdicts of a bundle or a battery, from one pass."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from alora.commands.artifacts import check_bases, open_bundles
from alora.commands.output import note, say_json, table
from alora.config.schema import Recipe
from alora.errors import ConfigError
from alora.verdict import Verdict, make_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from alora.base.load import LoadedBase
    from alora.bundle.read import Bundle
    from alora.render import Prefix


def run(recipe: Recipe) -> int:
    """Score one conversation with every policy; the verdict is the output, not the exit code."""
    from alora.base.load import base_location, load_base
    from alora.conversation import read_conversation
    from alora.prefix.scorer import Scorer

    if recipe.conversation is None:
        raise ConfigError("no conversation is given; add conversation=FILE.json, or - to read standard input")
    bundles, settings = open_bundles(recipe)
    conversation = read_conversation(recipe.conversation)
    base = load_base(settings)
    check_bases(bundles, base)
    prefix = bundles[0].renderer(base).prefix(conversation)
    if recipe.engine == "vllm":
        logits_PL = _ask_vllm(bundles, base, base_location(settings), prefix)
    else:
        with Scorer(base, [bundle.weights for bundle in bundles]) as scorer:
            logits_PL = scorer.label_logits(prefix, [bundle.suffix for bundle in bundles])
    verdicts = [
        make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)
        for bundle, logits_L in zip(bundles, logits_PL, strict=True)
    ]
    if recipe.json:
        say_json(_document(conversation.id, prefix, verdicts))
    else:
        _show(verdicts, prefix)
    return 0


def _ask_vllm(bundles: Sequence[Bundle], base: LoadedBase, location: str, prefix: Prefix) -> list[torch.Tensor]:
    from alora.serving.engine import Engine, ServedAdapter, require_unquantized

    require_unquantized(base)
    adapters = [
        ServedAdapter(f"{bundle.policy.id}@{bundle.weights.digest[:16]}", bundle.folder, bundle.weights.spec.rank)
        for bundle in bundles
    ]
    engine = Engine(location, adapters, str(base.model.dtype).removeprefix("torch."))
    suffixes = [bundle.suffix for bundle in bundles]
    return engine.label_logits(prefix, suffixes, [adapter.name for adapter in adapters])


def _document(name: str, prefix: Prefix, verdicts: list[Verdict]) -> dict[str, object]:
    return {
        "conversation": name,
        "prefix_tokens": len(prefix.token_ids),
        "truncation": None if prefix.truncation is None else asdict(prefix.truncation),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
    }


def _show(verdicts: list[Verdict], prefix: Prefix) -> None:
    table(
        ("policy", "verdict", "probability", "threshold", "adapter"),
        [(v.policy, v.label, v.probability, v.threshold, v.adapter_digest[:12]) for v in verdicts],
    )
    if prefix.truncation is not None:
        cut = prefix.truncation
        note(
            f"the conversation was truncated: {cut.tokens_before} tokens became {cut.tokens_after}, taken from the "
            f"{cut.taken_from}"
        )
