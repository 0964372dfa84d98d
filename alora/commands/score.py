"""``alora score DIR conversation.json`` or ``rows.jsonl``: the verdicts of a bundle or a battery.

``engine=vllm`` asks vLLM in this process, ``engine=http://HOST:PORT`` a server that ``alora serve`` started; without
``artifact=`` that server's guard says itself what it serves. Rows go to
lines of JSON, or, by ``output=FILE.parquet`` and ``output=FOLDER``, to Parquet (:mod:`alora.logs.verdicts`).
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.api import Battery, Verdicts, load, open_artifact
from alora.atomic import write_pieces
from alora.bundle.light import read_bundle
from alora.commands.bundles import NO_BUNDLE
from alora.commands.output import note, report_file, say, say_json, table, write_json
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear, redacted
from alora.data.conversation import LabelledConversation, Rejected, read_conversation, stream_conversations
from alora.data.sources import HUB, JSON_SUFFIXES, PARQUET_SUFFIXES, TABLE_SUFFIXES
from alora.errors import AloraError, ConfigError
from alora.logs.rows import survey, time_of
from alora.logs.verdicts import Refused, Scored, VerdictFolder
from alora.version import __version__

if TYPE_CHECKING:
    from alora.remote import Client, GuardClient

ROWS = tuple({*JSON_SUFFIXES, *TABLE_SUFFIXES, *PARQUET_SUFFIXES, ".gz"} - {".json"})  # .json is one conversation


def run(recipe: Recipe) -> int:
    """Score one conversation, or each row of a file; the verdicts are the output, not the exit code."""
    source = recipe.conversation
    if source is None:
        missing = ["no conversation is given; add conversation=FILE.json, rows in FILE.jsonl, or - for standard input"]
        missing += [] if recipe.artifact or recipe.bundles else [NO_BUNDLE]
        raise ConfigError("\n".join(missing))
    if Path(source).is_dir():
        raise ConfigError(f"{source} is a folder, and no conversation; give alora score {source} FILE.json")
    of_rows = source.lower().endswith(ROWS) or source.startswith(HUB)
    if of_rows and recipe.output and Path(recipe.output).suffix in ("", ".parquet"):
        return _score_logs(recipe, source, Path(recipe.output))
    output = recipe.output and report_file(recipe.output)
    if not of_rows:
        conversation = read_conversation(source, recipe.data)
        with _scorer(recipe) as scorer:
            _report_one(scorer.score(conversation), output or None, recipe.json)
        return 0
    found = survey(source, recipe.data)
    found.wrong.raise_if_any(source)
    violated: Counter[str] = Counter()
    good = (row for _, row in stream_conversations(source, recipe.data) if isinstance(row, LabelledConversation))
    lines = _lines(_scored(recipe, good), violated)
    if not output:
        for line in lines:
            say(line)
        return 0
    write_pieces(output, (f"{line}\n" for line in lines))
    table(("policy", "rows", "violated"), [(policy, found.count, count) for policy, count in violated.items()])
    return 0


def _score_logs(recipe: Recipe, source: str, output: Path) -> int:
    """Rows to Parquet; 1 where none could be scored. A row that is wrong costs itself alone, unless ``strict``."""
    told = _told_by_guard(recipe) if _by_guard(recipe) else _told_by_bundles(recipe)
    found = survey(source, recipe.data)
    if recipe.strict:
        found.wrong.raise_if_any(source)
    job = {
        "rows": found.count,
        "rows_digest": found.digest,
        "time": recipe.data.columns.time,
        **told,
        "engine": redacted(recipe.engine),
        "shard_rows": recipe.logs.shard_rows,
        "alora": __version__,
    }
    folder = VerdictFolder(output, job)
    done = folder.done
    if done is not None:
        note(f"{output} is complete already")
    else:
        with folder:
            _write_shards(recipe, source, folder)
            done = folder.finish()
    table(
        ("policy", "rows", "violated"), [(policy, done["scored"], count) for policy, count in done["flagged"].items()]
    )
    if done["rejected"]:
        note(f"{done['rejected']} of {found.count} rows have no verdict; {folder.rejected} says why of each")
    return int(done["scored"] == 0)


def _write_shards(recipe: Recipe, source: str, folder: VerdictFolder) -> None:
    from tqdm.auto import tqdm

    missing = set(folder.missing())
    if not missing:
        return
    size, rows = recipe.logs.shard_rows, enumerate(stream_conversations(source, recipe.data))
    before = folder.job["rows"] - sum(min(size, folder.job["rows"] - shard * size) for shard in missing)
    with (
        closing(_scorer(recipe)) as scorer,
        tqdm(total=folder.job["rows"], initial=before, desc="scoring", unit="row", mininterval=1) as bar,
    ):
        for shard in range(folder.shards):
            part = islice(rows, size)
            if shard in missing:
                folder.write(shard, _answers(scorer, part, recipe, bar))
            else:
                deque(part, maxlen=0)


def _answers(
    scorer: Battery | Client | GuardClient, rows: Iterable[tuple[int, Any]], recipe: Recipe, bar: Any
) -> Iterator[Scored | Refused]:
    """What comes of each row, in any order; nothing of another shard is read."""
    asked: deque[tuple[int, Any, LabelledConversation]] = deque()
    refused: list[Refused] = []

    def conversations() -> Iterator[LabelledConversation]:
        for number, (value, row) in rows:
            if isinstance(row, Rejected):
                refused.append(Refused(number, row.where, [str(finding) for finding in row.findings]))
            else:
                asked.append((number, value, row))
                yield row

    for answer in scorer.score_many(conversations(), errors="return"):
        number, value, row = asked.popleft()
        bar.update()
        if isinstance(answer, AloraError):
            if recipe.strict:
                raise answer
            yield Refused(number, row.where, [str(answer)])
        else:
            time = time_of(value, recipe.data)
            cut = answer.truncation is not None
            yield Scored(number, answer.conversation, time, answer.prefix_tokens, cut, answer.verdicts)
    bar.update(len(refused))
    yield from refused


def _told_by_bundles(recipe: Recipe) -> dict[str, Any]:
    """What the verdicts hang on, and what later ones are compared with."""
    bundles, base = open_artifact(_artifact(recipe), recipe.base, recipe.policies, read_bundle)
    policies = {}
    for bundle in bundles:
        point = bundle.manifest.operating_point
        known = {"adapter": bundle.manifest.adapter_digest, "labels": list(bundle.policy.labels)}
        policies[bundle.policy.id] = known | asdict(point.calibration) | {"histogram": point.histogram}
    return {"policies": policies, "base": bundles[0].manifest.base.fingerprint.as_dict() | {"dtype": base.dtype}}


def _by_guard(recipe: Recipe) -> bool:
    """Whether a guard is asked: it knows its bundles itself."""
    return recipe.engine.startswith("http") and not _artifact(recipe)


def _told_by_guard(recipe: Recipe) -> dict[str, Any]:
    from alora.remote import GuardClient

    with GuardClient(recipe.engine) as guard:
        asked = {one.policy: one for one in guard.asked}
    return {
        "policies": {
            name: {"adapter": one.digest, "labels": list(one.labels), "threshold": one.threshold}
            for name, one in asked.items()
        }
    }


def _artifact(recipe: Recipe) -> list[str]:
    return [*([recipe.artifact] if recipe.artifact else []), *recipe.bundles]


def _scorer(recipe: Recipe) -> Battery | Client | GuardClient:
    """What computes the verdicts: the engine that was asked for."""
    if recipe.engine.startswith("http"):
        from alora.remote import Client, GuardClient

        if remark := in_the_clear(recipe.engine):
            note(remark)
        if _by_guard(recipe):
            return GuardClient(recipe.engine)
        return Client(recipe.engine, _artifact(recipe), base=recipe.base, policies=recipe.policies)
    here = "vllm" if recipe.engine == "vllm" else "packed"
    return load(_artifact(recipe), base=recipe.base, scorer=here, policies=recipe.policies)


def _scored(recipe: Recipe, rows: Iterable[LabelledConversation]) -> Iterator[Verdicts]:
    """The verdicts on each row, in order."""
    with _scorer(recipe) as scorer:
        yield from scorer.score_many(rows)


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
    if verdicts.windows > 1:
        note(f"the conversation was scored in {verdicts.windows} windows; each probability is the highest of any")
    if (cut := verdicts.truncation) is not None:
        note(
            f"the conversation was truncated: {cut.tokens_before} tokens became {cut.tokens_after}, taken from the "
            f"{cut.taken_from}"
        )
