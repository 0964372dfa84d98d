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

from tqdm.auto import tqdm

from alora.config.schema import JudgeSettings
from alora.data.conversation import LabelledConversation
from alora.errors import ConfigError
from alora.evaluation.noise import Doubt
from alora.llm.answers import Answers
from alora.llm.client import JudgeClient, JudgeUsage, NoAnswer
from alora.llm.judge_prompt import Answer, messages
from alora.policy import Policy
from alora.received import decode
from alora.text import printable

SURE = 0.995  # what a confidence of 100, or none at all, counts as


def require_settings(settings: JudgeSettings) -> None:
    """Refuse settings without an endpoint, or with half of the prices, which would leave out part of the cost."""
    if settings.url is None:
        raise ConfigError("a judge needs judge.url=https://HOST/v1 and judge.model=NAME")
    if (settings.input_price is None) != (settings.output_price is None):
        missing = "input_price" if settings.input_price is None else "output_price"
        raise ConfigError(f"cost needs both prices; add judge.{missing}=0 if there is none, or leave out the other")


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
    mine = [row for row in rows if policy.id in row.labels]
    _remark(
        f"asking {settings.model} about {len(mine)} rows of {policy.id}; answers that are in the cache cost nothing"
    )
    given = ask(policy, {"train": mine}, answers, settings)[0]["train"]
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


def ask(
    policy: Policy, parts: Mapping[str, Sequence[LabelledConversation]], file: Path, settings: JudgeSettings
) -> tuple[dict[str, dict[int, Answer]], JudgeUsage, Counter[NoAnswer]]:
    """The answers on each part of the rows by row index, what all calls have used, and how many rows have none.
    Answers are kept in ``file``."""
    silent = Counter[NoAnswer]()
    with JudgeClient(settings) as client:
        book = Answers(file, read_kept)
        try:
            given = {name: _answers(client, book, policy, rows, settings, silent) for name, rows in parts.items()}
            book.add_usage(client.usage)
        finally:
            _remark(f"{policy.id}: {_spent(client.usage, settings)}")
    if silent:  # an endpoint's words may quote a row, so they go into no file
        reasons = ", ".join(f"{count} {why.name.lower()}" for why, count in silent.items())
        words = f"; last refusal: {client.refusal}" if client.refusal else ""
        _remark(f"{policy.id}: {silent.total()} rows have no answer ({reasons}{words})")
    return given, book.usage, silent


def _answers(
    client: JudgeClient,
    book: Answers[Answer],
    policy: Policy,
    rows: Sequence[LabelledConversation],
    settings: JudgeSettings,
    silent: Counter[NoAnswer],
) -> dict[int, Answer]:
    """The answers by row index; ``silent`` counts the rows without one."""
    keys = [_key(policy, row, settings) for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)  # files are sorted by label: no kind of row in a row

    def ask_row(index: int) -> Answer | NoAnswer:
        key = keys[index]
        if known := book.known.get(key):
            client.answered()
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
        except BaseException:
            pool.shutdown(cancel_futures=True)  # requests under way are paid for as well
            book.add_usage(client.usage)
            raise
    return given


def _remark(text: str) -> None:
    tqdm.write(printable(text), file=sys.stderr)


def _spent(usage: JudgeUsage, settings: JudgeSettings) -> str:
    """What this call alone used, without the answers of earlier ones."""
    cost = "" if settings.input_price is None else f", cost {usage.cost(settings):.4f}"
    return f"{usage.requests} requests, {usage.input_tokens} input and {usage.output_tokens} output tokens{cost}"


def _key(policy: Policy, row: LabelledConversation, settings: JudgeSettings) -> str:
    """Digest of the request and of the model asked: an answer holds for nothing else."""
    asked = [settings.url, settings.model, messages(policy, row.conversation, settings.max_characters)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def read_kept(kept: Mapping[str, Any]) -> Answer:
    return decode(Answer, {name: kept[name] for name in ("label_id", "confidence")})
