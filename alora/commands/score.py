"""``alora score artifact=DIR conversation.json`` or ``rows.jsonl``: the verdicts of a bundle or a battery.

``engine=vllm`` asks vLLM in this process, ``engine=http://HOST:PORT`` a server that ``alora serve`` started.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from alora.api import Verdicts, load
from alora.atomic import write_pieces
from alora.commands.bundles import NO_BUNDLE
from alora.commands.output import note, report_file, say, say_json, table, write_json
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear
from alora.data.conversation import Conversation, LabelledConversation, read_conversation, read_conversations
from alora.data.sources import HUB, JSON_SUFFIXES, PARQUET_SUFFIXES, TABLE_SUFFIXES
from alora.errors import ConfigError

ROWS = tuple({*JSON_SUFFIXES, *TABLE_SUFFIXES, *PARQUET_SUFFIXES, ".gz"} - {".json"})  # .json is one conversation


def run(recipe: Recipe) -> int:
    """Score one conversation, or each row of a file; the verdicts are the output, not the exit code."""
    if recipe.conversation is None:
        missing = ["no conversation is given; add conversation=FILE.json, rows in FILE.jsonl, or - for standard input"]
        missing += [] if recipe.artifact or recipe.bundles else [NO_BUNDLE]
        raise ConfigError("\n".join(missing))
    output = recipe.output and report_file(recipe.output)
    if not recipe.conversation.lower().endswith(ROWS) and not recipe.conversation.startswith(HUB):
        (verdicts,) = _scored(recipe, [read_conversation(recipe.conversation, recipe.data)])
        _report_one(verdicts, output or None, recipe.json)
        return 0
    rows = read_conversations(recipe.conversation, recipe.data)
    violated: Counter[str] = Counter()
    lines = _lines(_scored(recipe, rows), violated)
    if not output:
        for line in lines:
            say(line)
        return 0
    write_pieces(output, (f"{line}\n" for line in lines))
    table(("policy", "rows", "violated"), [(policy, len(rows), count) for policy, count in violated.items()])
    return 0


def _scored(recipe: Recipe, rows: Sequence[Conversation | LabelledConversation]) -> Iterator[Verdicts]:
    """The verdicts on each row, in order, by the engine that was asked for."""
    artifact = [*([recipe.artifact] if recipe.artifact else []), *recipe.bundles]
    if recipe.engine.startswith("http"):
        from alora.remote import Client

        if remark := in_the_clear(recipe.engine):
            note(remark)
        scorer = Client(recipe.engine, artifact, base=recipe.base, policies=recipe.policies)
    else:
        here = "vllm" if recipe.engine == "vllm" else "packed"
        scorer = load(artifact, base=recipe.base, scorer=here, policies=recipe.policies)
    with scorer:
        yield from scorer.score_many(rows) if len(rows) > 1 else map(scorer.score, rows)


def _lines(scored: Iterable[Verdicts], violated: Counter[str]) -> Iterator[str]:
    """One line of JSON for each row; ``violated`` counts."""
    for verdicts in scored:
        violated.update({verdict.policy: verdict.violated for verdict in verdicts})
        yield json.dumps(verdicts.as_dict(), allow_nan=False)


def _report_one(verdicts: Verdicts, output: Path | None, as_json: bool) -> None:
    if output:
        write_json(output, verdicts.as_dict())
    if as_json:
        say_json(verdicts.as_dict())
        return
    table(
        ("policy", "verdict", "probability", "threshold", "adapter"),
        [(v.policy, v.label, v.probability, v.threshold, v.adapter_digest[:12]) for v in verdicts],
    )
    if (cut := verdicts.truncation) is not None:
        note(
            f"the conversation was truncated: {cut.tokens_before} tokens became {cut.tokens_after}, taken from the "
            f"{cut.taken_from}"
        )
