"""The method that asks another model: conversation and rule go to an endpoint, a label and a confidence come back.

Answers are kept row by row, so a resumed comparison asks for none of them twice. A row without an answer
after all tries has no score; figures cover the rows that have one, and their share is reported. Where the endpoint
failed on a row, rather than refused it, the method stays open and the next call asks again.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from alora.comparison.answers import Answers
from alora.comparison.folder import ASK_AGAIN, JUDGE, judge_digest
from alora.comparison.judge_client import FAILURES_IN_A_ROW, JudgeClient, JudgeUsage, NoAnswer
from alora.comparison.judge_prompt import Answer, messages
from alora.comparison.scores import RowScores, Scores, calibration_rows, labelled_for
from alora.comparison.task import MethodRun, Task
from alora.config.schema import JudgeSettings
from alora.config.secrets import redacted
from alora.data.conversation import LabelledConversation
from alora.errors import ConfigError, RunError
from alora.evaluation.noise import Doubt
from alora.policy import Policy
from alora.reading import printable
from alora.received import decode

SURE = 0.995  # what a confidence of 100, or none at all, counts as


def require_settings(settings: JudgeSettings) -> None:
    """Refuse settings without an endpoint, or with half of the prices, which would leave out part of the cost."""
    if settings.url is None:
        raise ConfigError("a judge needs judge.url=https://HOST/v1 and judge.model=NAME")
    if (settings.input_price is None) != (settings.output_price is None):
        missing = "input_price" if settings.input_price is None else "output_price"
        raise ConfigError(f"cost needs both prices; add judge.{missing}=0 if there is none, or leave out the other")


def ask_and_score(task: Task, run: MethodRun, home: Path) -> dict[str, Scores]:
    """Ask the judge about every validation and test row of every policy; answers are kept below ``home``."""
    settings = task.recipe.judge
    require_settings(settings)
    scores, patience = {}, _Patience(settings)
    for policy in task.policies:
        known = calibration_rows(task.splits, policy, run.arm)
        rows = {"validation": known, "test": labelled_for(policy, task.splits.test)}
        given, usage, silent = _ask(policy, rows, home / "answers" / f"{policy.id}.jsonl", patience)
        parts = {name: _scores(policy, part, given[name]) for name, part in rows.items()}
        facts = _facts(settings, usage, silent)
        # Where nothing at all was answered, something is to be mended before these rows can be.
        facts[ASK_AGAIN] = silent[NoAnswer.FAILED] if any(given.values()) else silent.total()
        scores[policy.id] = Scores(run.arm, policy.id, None, None, **parts, facts=facts)
    return scores


@dataclass(frozen=True)
class SecondOpinion:
    """A judge's labels next to the rows' own: ``doubts`` are the rows where they differ, the surest first."""

    doubts: list[Doubt]
    asked: int
    answered: int
    commonest: int  # answered rows that have the commonest label: so many agree with a judge who knows nothing else


def disagreements(
    policy: Policy, rows: Sequence[LabelledConversation], settings: JudgeSettings, answers: Path
) -> SecondOpinion:
    """Rows whose label is not the judge's; what it said is kept in ``answers``."""
    require_settings(settings)
    if not policy.rule.strip():
        raise ConfigError(f"policy {policy.id!r} has no rule to judge by; give it one")
    mine = labelled_for(policy, rows)
    _remark(
        f"asking {settings.model} about {len(mine)} rows of {policy.id}; answers that are in the cache cost nothing"
    )
    given = _ask(policy, {"train": mine}, answers, _Patience(settings))[0]["train"]
    doubts = [
        Doubt(
            row,
            row.labels[policy.id],
            policy.labels[answer.label_id],
            SURE if answer.confidence is None else answer.confidence,
        )
        for row, answer in ((mine[index], answer) for index, answer in sorted(given.items()))
        if policy.labels[answer.label_id] != row.labels[policy.id]
    ]
    labels = Counter(mine[index].labels[policy.id] for index in given)
    doubts.sort(key=lambda doubt: -doubt.probability)
    return SecondOpinion(doubts, len(mine), len(given), max(labels.values(), default=0))


def _ask(
    policy: Policy, parts: Mapping[str, Sequence[LabelledConversation]], file: Path, patience: "_Patience"
) -> tuple[dict[str, dict[int, Answer]], JudgeUsage, Counter[NoAnswer]]:
    """The answers on each part of the rows by row index, what all calls have used, and how many rows have none.
    Answers are kept in ``file``."""
    settings, silent = patience.settings, Counter[NoAnswer]()
    with JudgeClient(settings) as client:
        book = _book(file, policy)
        try:
            given = {name: _answers(client, book, policy, rows, patience, silent) for name, rows in parts.items()}
            book.add_usage(client.usage)
        finally:
            _remark(f"{policy.id}: {_spent(client.usage, settings)}")
    if silent:  # an endpoint's words may quote a row, so they go into no file
        reasons = ", ".join(f"{count} {why.name.lower()}" for why, count in silent.items())
        words = f"; last refusal: {client.refusal}" if client.refusal else ""
        _remark(f"{policy.id}: {silent.total()} rows have no answer ({reasons}{words})")
    return given, book.usage, silent


def _scores(policy: Policy, rows: Sequence[LabelledConversation], given: Mapping[int, Answer]) -> RowScores:
    """Scores of the rows that have an answer, in the rows' order."""
    kept, labels = sorted(given), len(policy.labels)
    return RowScores(
        ids=tuple(rows[index].conversation.id for index in kept),
        label_ids_N=np.array([policy.label_index(rows[index].labels[policy.id]) for index in kept], dtype=np.int64),
        logits_NL=np.array([logits(given[index], labels) for index in kept], dtype=np.float64).reshape(-1, labels),
        asked=len(rows),
    )


def _answers(
    client: JudgeClient,
    book: Answers[Answer],
    policy: Policy,
    rows: Sequence[LabelledConversation],
    patience: "_Patience",
    silent: Counter[NoAnswer],
) -> dict[int, Answer]:
    """The answers by row index; ``silent`` counts the rows without one."""
    settings = patience.settings
    keys = [_key(policy, row, settings) for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)  # files are sorted by label: no kind of row in a row

    def ask_row(index: int) -> Answer | NoAnswer:
        key = keys[index]
        if known := book.known.get(key):
            return known
        answer = client.ask(policy, rows[index].conversation)
        if isinstance(answer, Answer):
            book.add(key, answer, **asdict(answer))  # at once: a slower row before it may end the asking
        return answer

    given: dict[int, Answer] = {}
    with ThreadPoolExecutor(settings.concurrency) as pool:
        try:
            answers: Iterable[Answer | NoAnswer] = pool.map(ask_row, order)
            bar = tqdm(answers, desc=f"asking about {policy.id}", total=len(rows), unit="row", disable=len(rows) < 2)
            for index, answer in zip(order, bar, strict=True):
                if isinstance(answer, Answer):
                    given[index] = answer
                else:
                    silent[answer] += 1
                patience.wear(answer, client.refusal)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # requests under way are paid for as well
            book.add_usage(client.usage)
            raise
    return given


class _Patience:
    """Stops asking after too many rows in a row without an answer: the endpoint is at fault then, not the rows.

    A filtered row is not counted, nor is an answer without a label once another row had one.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self._answered, self._in_a_row = False, 0

    def wear(self, answer: Answer | NoAnswer, refusal: str) -> None:
        """Count one row; ``refusal`` is what the endpoint last refused with."""
        if isinstance(answer, Answer):
            self._answered, self._in_a_row = True, 0
            return
        if answer is not NoAnswer.FILTERED and not (answer is NoAnswer.UNREADABLE and self._answered):
            self._in_a_row += 1
        if self._in_a_row < FAILURES_IN_A_ROW:
            return
        url, without = f"judge.url={redacted(str(self.settings.url))}", "leave judge.url out to do without it"
        if answer is NoAnswer.REFUSED and not self._answered:
            raise ConfigError(f"{url} refuses every request: {refusal}; see the judge's settings, or {without}")
        advice = "see whether it is up"
        if answer is NoAnswer.REFUSED:
            advice = f"it refuses them: {refusal}"
        elif answer is NoAnswer.UNREADABLE:
            advice = "they hold no label; raise judge.max_tokens if it thinks before it answers"
        raise RunError(
            f"{url}: the last {self._in_a_row} rows got no answer that can be read; {advice}, then give the same "
            f"command again, or {without}: answers so far are kept"
        )


def _remark(text: str) -> None:
    tqdm.write(printable(text), file=sys.stderr)


def _spent(usage: JudgeUsage, settings: JudgeSettings) -> str:
    """What this call alone used, without the answers of earlier ones."""
    cost = "" if settings.input_price is None else f", cost {usage.cost(settings):.4f}"
    return f"{usage.requests} requests, {usage.input_tokens} input and {usage.output_tokens} output tokens{cost}"


def logits(answer: Answer, labels: int) -> list[float]:
    """Log-probabilities: the confidence on the label given, the rest shared by the others, none of them above it."""
    sure = SURE if answer.confidence is None else min(SURE, max(1 / labels, answer.confidence))
    rest = min(sure, (1 - sure) / (labels - 1))
    return np.log([sure if index == answer.label_id else rest for index in range(labels)]).tolist()


def _key(policy: Policy, row: LabelledConversation, settings: JudgeSettings) -> str:
    """Digest of the request and of the model asked: an answer holds for nothing else."""
    asked = [settings.url, settings.model, messages(policy, row.conversation, settings.max_characters)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _book(file: Path, policy: Policy) -> Answers[Answer]:
    """The answers on one policy's rows that are kept in ``file``."""

    def read(kept: Mapping[str, Any]) -> Answer:
        answer = decode(Answer, {name: kept[name] for name in ("label_id", "confidence")})
        if not (0 <= answer.label_id < len(policy.labels) and 0 <= (answer.confidence or 0) <= 1):
            raise ValueError(f"no answer: {answer}")
        return answer

    return Answers(file, read)


def _facts(settings: JudgeSettings, usage: JudgeUsage, silent: Counter[NoAnswer]) -> dict[str, Any]:
    refused = silent[NoAnswer.REFUSED] + silent[NoAnswer.FILTERED]
    facts: dict[str, Any] = {"model": settings.model, JUDGE: judge_digest(settings)}
    facts |= {**asdict(usage), "refused_rows": refused}
    return facts | ({} if settings.input_price is None else {"cost": round(usage.cost(settings), 6)})
