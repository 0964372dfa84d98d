"""``alora score DIR conversation.json`` or ``rows.jsonl``: the verdicts of a bundle or a battery.

``scorer=vllm`` asks vLLM in this process, ``scorer=http://HOST:PORT`` a guard, which ``alora serve`` started; without
``artifact=`` all that it serves. Rows go to lines of JSON, or, by ``output=FILE.parquet`` and ``output=FOLDER``, to
Parquet (:mod:`alora.batch.log_job`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from alora.atomic import write_json, write_pieces
from alora.batch.log_job import score_log
from alora.batch.log_rows import survey
from alora.batch.shards import scorer_of
from alora.bundle.artifact import NO_BUNDLE, find_artifact
from alora.bundle.run_rows import note_reading, settings_as_trained
from alora.commands.output import report_file, say, say_json, table
from alora.config.schema import DataSettings, Recipe
from alora.data.conversation import LabelledConversation, holds_rows, read_conversation, stream_conversations
from alora.data.sources import HUB, JSON_SUFFIXES, PARQUET_SUFFIXES, TABLE_SUFFIXES
from alora.errors import ConfigError, RunError
from alora.text import note
from alora.verdict import Verdicts

ROWS = tuple({*JSON_SUFFIXES, *TABLE_SUFFIXES, *PARQUET_SUFFIXES, ".gz"} - {".json"})  # .json may be one conversation


def run(recipe: Recipe) -> int:
    """Score one conversation, or each row of a file; the verdicts are the output, not the exit code."""
    source = recipe.conversation
    if source is None:
        missing = ["no conversation is given; add conversation=FILE.json, rows as data=FILE, or - for standard input"]
        missing += [] if recipe.artifact or recipe.bundles else [NO_BUNDLE]
        raise ConfigError("\n".join(missing))
    if Path(source).is_dir():
        raise ConfigError(f"{source} is a folder, and no conversation; give alora score {source} FILE.json")
    read, remarks = _read_as_trained(recipe)
    of_rows = source.lower().endswith(ROWS) or source.startswith(HUB) or holds_rows(source, read)
    recipe = replace(recipe, data=read)
    for remark in remarks:
        note(remark)
    if of_rows and recipe.output not in (None, "", "-") and _is_job(Path(recipe.output)):
        done = score_log(recipe, source, Path(recipe.output))
        _count(done["scored"], done["flagged"])
        return int(done["scored"] == 0)
    if recipe.cluster is not None or (recipe.output and Path(recipe.output).suffix.lower() in PARQUET_SUFFIXES):
        raise ConfigError(
            "cluster=ray and output=FILE.parquet are for the verdicts on a log; give output=FILE.parquet, and as data= "
            "the log, of JSON lines, CSV, TSV or Parquet"
        )
    output = recipe.output and report_file(recipe.output)
    if not of_rows:
        notes = Counter[str]()
        conversation = read_conversation(source, recipe.data, notes)
        note_reading(notes)
        with scorer_of(recipe) as scorer:
            _report_one(scorer.score(conversation), output or None, recipe.json)
        return 0
    found = survey(source, recipe.data)
    found.wrong.raise_if_any(source)
    note_reading(found.wrong.notes)
    violated: Counter[str] = Counter()
    rows = (row for _, row in islice(stream_conversations(source, recipe.data), found.count))
    lines = _lines(recipe, (row for row in rows if isinstance(row, LabelledConversation)), violated)
    if not output:
        for line in lines:
            say(line)
        return 0
    write_pieces(output, (f"{line}\n" for line in lines))
    _count(found.count, violated)
    return 0


def _count(rows: int, violated: Mapping[str, int]) -> None:
    table(("policy", "rows", "violated"), [(policy, rows, count) for policy, count in violated.items()])


def _read_as_trained(recipe: Recipe) -> tuple[DataSettings, list[str]]:
    """How rows are read: as the artifact's run read its own, where the command says nothing else; and remarks. A run
    that cannot say costs that alone: a bundle is whole without it."""
    if recipe.artifact is None or not Path(recipe.artifact).is_dir():  # of the hub
        return recipe.data, []
    artifact = find_artifact(recipe.artifact)
    try:
        read = settings_as_trained(recipe, artifact)
    except (RunError, ConfigError) as error:
        alone = "rows are read by this verb's settings alone: give data.columns and data.role_map, if the run had any"
        return recipe.data, [f"{error}; {alone}"]
    without = "as the run's own, rows are read without images, audio and files; data.skip_media=false refuses such rows"
    remarks = [without] if read.skip_media and not recipe.data.skip_media else []
    return replace(read, columns=replace(read.columns, time=recipe.data.columns.time)), remarks


def _is_job(output: Path) -> bool:
    """Whether verdicts become Parquet, one file or a folder of them; else they are JSON lines."""
    suffix = output.suffix.lower()
    if suffix in (*TABLE_SUFFIXES, ".gz", ".txt"):
        raise ConfigError(f"output={output}: verdicts are written to NAME.parquet, to a folder or to NAME.jsonl")
    return suffix not in JSON_SUFFIXES


def _lines(recipe: Recipe, rows: Iterable[LabelledConversation], violated: Counter[str]) -> Iterator[str]:
    """One line of JSON for each row, in order; ``violated`` counts."""
    with scorer_of(recipe) as scorer:
        for verdicts in scorer.score_many(rows):
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
        note(f"the conversation was scored in {verdicts.windows} windows; each probability is of the likeliest")
    if (cut := verdicts.truncation) is not None:
        note(
            f"the conversation was truncated: {cut.tokens_before} tokens became {cut.tokens_after}, taken from the "
            f"{cut.taken_from}"
        )
