"""What scores a log shard by shard: the scorer that was asked for, and the rows that it reads on through."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from alora.batch.log_rows import time_of
from alora.batch.stored_verdicts import shard_rows
from alora.batch.verdict_folder import RefusedRow, ScoredRow, VerdictFolder
from alora.bundle.artifact import named_artifacts, open_artifact
from alora.bundle.light import read_bundle
from alora.client.guard_scorer import GuardScorer
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear
from alora.data.conversation import Rejected, stream_conversations
from alora.errors import AloraError
from alora.text import note

if TYPE_CHECKING:
    from alora.client.in_process import Battery


class Shards:
    """What scores and writes shards of one log; it reads on from shard to shard."""

    def __init__(self, recipe: Recipe, source: str, folder: VerdictFolder) -> None:
        self._recipe, self._source, self._folder = recipe, source, folder
        self._scorer, self._next = scorer_of(recipe), 0
        self._rows = stream_conversations(source, recipe.data)

    def write(self, shard: int, tick: Callable[[int], object]) -> None:
        """Score one shard; ``tick`` hears of rows that are done."""
        recipe, numbers = self._recipe, shard_rows(self._folder.job, shard)
        if shard < self._next:
            self._rows, self._next = stream_conversations(self._source, recipe.data), 0
        deque(islice(self._rows, (shard - self._next) * recipe.logs.shard_rows), maxlen=0)
        self._next = shard + 1
        rows = enumerate(islice(self._rows, len(numbers)), numbers[0])
        self._folder.write(shard, _answers(self._scorer, rows, recipe, tick))

    def close(self) -> None:
        self._scorer.close()


def _answers(
    scorer: Battery | GuardScorer, rows: Iterable[tuple[int, Any]], recipe: Recipe, tick: Callable[[int], object]
) -> Iterator[ScoredRow | RefusedRow]:
    """What comes of each row of a shard, in any order."""
    asked = []
    for number, (value, row) in rows:
        if isinstance(row, Rejected):
            yield RefusedRow(number, row.where, [str(finding) for finding in row.findings])
            tick(1)
        else:
            asked.append((number, value, row))
    answers = scorer.score_many((row for *_, row in asked), errors="return")
    for (number, value, row), answer in zip(asked, answers, strict=True):
        tick(1)
        if isinstance(answer, AloraError):
            if recipe.strict:
                raise answer
            yield RefusedRow(number, row.where, [str(answer)])
        else:
            time = time_of(value, recipe.data)
            cut = answer.truncation is not None
            yield ScoredRow(number, answer.conversation, time, answer.prefix_tokens, cut, answer.verdicts)


def by_guard(recipe: Recipe) -> bool:
    return recipe.scorer.startswith("http")


def guard_scorer(recipe: Recipe) -> GuardScorer:
    """What asks the guard: for the bundles that the recipe names, or for all that it serves."""
    named = named_artifacts(recipe)
    bundles = open_artifact(named, recipe.base, recipe.policies, read_bundle)[0] if named else ()
    return GuardScorer(recipe.scorer, bundles)


def scorer_of(recipe: Recipe) -> Battery | GuardScorer:
    if by_guard(recipe):
        if remark := in_the_clear(recipe.scorer):
            note(remark)
        return guard_scorer(recipe)
    from alora.client.in_process import load  # torch, which a server's client goes without

    here = "vllm" if recipe.scorer == "vllm" else "packed"
    if here == "vllm":
        note("loading the base, then starting vLLM in this process: a minute or more without a word until it can score")
    asked, most = named_artifacts(recipe), recipe.scoring.max_tokens
    return load(asked, base=recipe.base, scorer=here, policies=recipe.policies, max_tokens=most)
