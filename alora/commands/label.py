"""``alora label verdicts=DIR data=LOG output=rows.jsonl``: the rows of a log that are worth a label, as training rows.

Fill in ``labels`` of each row (null: not annotated), and give the file to ``alora check`` and ``alora train``.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from alora.atomic import write_pieces
from alora.batch.log_rows import conversations_at
from alora.batch.sample import DISAGREES, STRATUM, UNCERTAIN, Wanted, sample
from alora.batch.stored_verdicts import read_manifest
from alora.commands.output import say, table
from alora.config.schema import Recipe
from alora.data.messages import Conversation, as_row
from alora.errors import CheckFailed, ConfigError
from alora.text import note


def run(recipe: Recipe) -> int:
    """Write the rows with an empty label for each policy that they are worth one of; an existing file is refused."""
    file = Path(str(recipe.output))
    if file.suffix.lower() not in (".jsonl", ".ndjson"):
        raise ConfigError(f"{file}: the rows are JSON lines; give output=NAME.jsonl")
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already, and somebody may have labelled it; give another output=")
    against = recipe.logs.against
    wanted = sample(Path(str(recipe.logs.verdicts)), recipe.logs.rows, None if against is None else Path(against))
    if not wanted:
        raise CheckFailed(f"{recipe.logs.verdicts} holds a verdict on no row, so there is nothing to label")
    job = read_manifest(Path(str(recipe.logs.verdicts)))["job"]
    write_pieces(file, _lines(conversations_at(str(recipe.conversation), recipe.data, job, wanted), wanted))
    counts = Counter((policy, said["why"]) for row in wanted.values() for policy, said in row.items())
    kinds = (DISAGREES, UNCERTAIN, STRATUM)
    table(("policy", *kinds), [(policy, *(counts[policy, kind] for kind in kinds)) for policy in job["policies"]])
    say(f"\n{len(wanted)} rows are written to {file}; fill in their labels (null: not annotated)")
    if against is None:
        note("logs.against=VERDICTS of another version or a judge adds rows on which the two differ")
    return 0


def _lines(rows: Iterable[tuple[int, Conversation]], wanted: Wanted) -> Iterator[str]:
    """Training rows, whose ids must differ; in a log each turn may have its thread's."""
    taken: set[str] = set()
    for number, conversation in rows:
        row = as_row(conversation) | {"labels": dict.fromkeys(wanted[number]), "verdicts": wanted[number]}
        while row["id"] in taken:
            row["id"] += f"#{number}"
        taken.add(row["id"])
        yield json.dumps(row) + "\n"
