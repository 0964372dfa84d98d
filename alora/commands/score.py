"""``alora score artifact=DIR conversation.json``: the verdicts of a bundle or a battery, from one pass.

``engine=vllm`` asks vLLM in this process, ``engine=http://HOST:PORT`` a server that ``alora serve`` started.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from alora.commands.artifacts import NO_BUNDLE, check_bases, open_bundles
from alora.commands.output import note, report_file, say_json, table, write_json
from alora.config.schema import BaseSettings, Recipe
from alora.config.secrets import in_the_clear
from alora.errors import ConfigError
from alora.verdict import Verdict, make_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from alora.base.load import LoadedBase
    from alora.bundle.read import Bundle
    from alora.data.conversation import Conversation
    from alora.prompt.render import Prefix


def run(recipe: Recipe) -> int:
    """Score one conversation with every policy; the verdict is the output, not the exit code."""
    from alora.data.conversation import read_conversation

    if recipe.conversation is None:
        missing = ["no conversation is given; add conversation=FILE.json, or - to read standard input"]
        missing += [] if recipe.artifact or recipe.bundles else [NO_BUNDLE]
        raise ConfigError("\n".join(missing))
    output = recipe.output and report_file(recipe.output)
    bundles, settings = open_bundles(recipe)
    conversation = read_conversation(recipe.conversation, recipe.data)
    if recipe.engine.startswith("http"):
        prefix, logits_PL = _ask_server(recipe.engine, bundles, settings, conversation)
    else:
        prefix, logits_PL = _run_here(recipe.engine, bundles, settings, conversation)
    verdicts = [
        make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)
        for bundle, logits_L in zip(bundles, logits_PL, strict=True)
    ]
    document = _document(conversation.id, prefix, verdicts)
    if output:
        write_json(output, document)
    if recipe.json:
        say_json(document)
    else:
        _show(verdicts, prefix)
    return 0


def _run_here(
    engine: str, bundles: Sequence[Bundle], settings: BaseSettings, conversation: Conversation
) -> tuple[Prefix, list[torch.Tensor]]:
    """One pass over all policies, in this process: alora's own, or vLLM's."""
    from alora.base.limits import require_room_for
    from alora.base.load import base_location, load_base
    from alora.prefix.scorer import Scorer

    base = load_base(settings)
    check_bases(bundles, base)
    prefix = bundles[0].renderer(base).prefix(conversation)
    require_room_for(base.model, prefix, [bundle.suffix for bundle in bundles])
    if engine == "vllm":
        return prefix, _ask_vllm(bundles, base, base_location(settings), prefix)
    with Scorer(base, [bundle.weights for bundle in bundles]) as scorer:
        return prefix, scorer.label_logits(prefix, [bundle.suffix for bundle in bundles])


def _ask_server(
    url: str, bundles: Sequence[Bundle], settings: BaseSettings, conversation: Conversation
) -> tuple[Prefix, list[torch.Tensor]]:
    """All policies at once, from a server that has shown first what it runs; only the base's tokenizer is read here."""
    from alora.base.describe import describe_prompts
    from alora.serving.client import RemoteEngine
    from alora.serving.engine import ServedAdapter

    if remark := in_the_clear(url):
        note(remark)
    base = describe_prompts(settings, bundles[0].manifest.base.fingerprint)
    for bundle in bundles:
        bundle.check_base(base)
    renderer = bundles[0].renderer(base)
    server = RemoteEngine(url)
    server.prove(bundles, renderer)
    prefix = renderer.prefix(conversation)
    names = [ServedAdapter.of(bundle).name for bundle in bundles]
    return prefix, server.label_logits(prefix, [bundle.suffix for bundle in bundles], names)


def _ask_vllm(bundles: Sequence[Bundle], base: LoadedBase, location: str, prefix: Prefix) -> list[torch.Tensor]:
    from alora.serving.engine import Engine, ServedAdapter, require_unquantized

    require_unquantized(base)
    adapters = [ServedAdapter.of(bundle) for bundle in bundles]
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
