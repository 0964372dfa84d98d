"""The arm that asks another model: conversation and rule go to an endpoint, a label and a confidence come back.

Answers are kept row by row, so that a comparison which was cut off pays for none of them twice. A row that has no
answer after all tries has no score; figures are of the rows that have one, and their share is told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from alora.comparison.judge_client import JudgeClient, Usage
from alora.comparison.judge_prompt import Answer, messages
from alora.comparison.scores import RowScores, Scores, labelled_for
from alora.comparison.task import Task, Unit
from alora.config.schema import JudgeSettings
from alora.conversation import LabelledConversation
from alora.errors import ConfigError, RunError
from alora.policy import Policy

SURE = 0.995  # what a confidence of 100, or none at all, counts as
FAILURES_IN_A_ROW = 20  # then the endpoint is taken for dead


def ask_and_score(task: Task, unit: Unit, home: Path) -> dict[str, Scores]:
    """Ask the judge about every validation and test row of every policy; answers are kept below ``home``.

    Raises:
        ConfigError: no endpoint is given, or it refuses key, model or request.
        RunError: it answers nothing any more; the same command goes on where it stopped.
    """
    settings = task.recipe.judge
    if settings.url is None:
        raise ConfigError("a judge needs judge.url=https://HOST/v1 and judge.model=NAME")
    found = {}
    for policy in task.policies:
        with JudgeClient(settings) as client:
            book = _Book(home / "answers" / f"{policy.id}.jsonl")
            parts = {
                name: _ask(client, book, policy, labelled_for(policy, getattr(task.splits, name)), settings)
                for name in ("validation", "test")
            }
            book.add_usage(client.usage)
        found[policy.id] = Scores(unit.arm, policy.id, None, None, **parts, facts=_facts(settings, book.usage))
    return found


def _ask(
    client: JudgeClient, book: _Book, policy: Policy, rows: Sequence[LabelledConversation], settings: JudgeSettings
) -> RowScores:
    from tqdm.auto import tqdm

    failures = 0

    def one(row: LabelledConversation) -> tuple[str, Answer | None]:
        key = _key(policy, row, settings)
        return key, book.answers[key] if key in book.answers else client.ask(policy, row.conversation)

    kept: list[tuple[str, int, list[float]]] = []
    with ThreadPoolExecutor(settings.concurrency) as pool:
        try:
            answers: Iterable[tuple[str, Answer | None]] = pool.map(one, rows)
            bar = tqdm(answers, desc=f"asking about {policy.id}", total=len(rows), unit="row", disable=len(rows) < 2)
            for row, (key, answer) in zip(rows, bar, strict=True):
                failures = 0 if answer is not None else failures + 1
                if failures >= FAILURES_IN_A_ROW:
                    raise RunError(
                        f"judge.url={settings.url}: the last {failures} rows got no answer that can be read; see "
                        "whether it is up, then give the same command again: answers so far are kept"
                    )
                if answer is not None:
                    book.add(key, answer)
                    label_id = policy.label_index(row.labels[policy.id])
                    kept.append((row.conversation.id, label_id, logits(answer, len(policy.labels))))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            book.add_usage(client.usage)
            raise
    return RowScores(
        ids=tuple(name for name, _, _ in kept),
        label_ids_N=np.array([label_id for _, label_id, _ in kept], dtype=np.int64),
        logits_NL=np.array([row for _, _, row in kept], dtype=np.float64).reshape(len(kept), len(policy.labels)),
        asked=len(rows),
    )


def logits(answer: Answer, labels: int) -> list[float]:
    """Log-probabilities: the confidence on the label given, the rest shared by the others."""
    sure = SURE if answer.confidence is None else min(SURE, max(1 - SURE, answer.confidence))
    rest = (1 - sure) / (labels - 1)
    return np.log([sure if place == answer.label_id else rest for place in range(labels)]).tolist()


def _key(policy: Policy, row: LabelledConversation, settings: JudgeSettings) -> str:
    """Digest of what was asked and of whom: an answer holds for nothing else."""
    asked = [settings.url, settings.model, messages(policy, row.conversation, settings.max_characters)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


class _Book:
    """Answers so far, one JSON line each, and what they have cost; a line that was cut off is asked again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.answers: dict[str, Answer] = {}
        self.usage = Usage()
        file.parent.mkdir(parents=True, exist_ok=True)
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                content = json.loads(line)
                if "usage" in content:
                    self._sum(content["usage"])
                else:
                    self.answers[content["key"]] = Answer(int(content["label_id"]), content["confidence"])
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, key: str, answer: Answer) -> None:
        if key not in self.answers:
            self.answers[key] = answer
            self._append({"key": key} | asdict(answer))

    def add_usage(self, usage: Usage) -> None:
        self._sum(asdict(usage))
        self._append({"usage": asdict(usage)})

    def _sum(self, usage: dict[str, int]) -> None:
        for name, amount in usage.items():
            setattr(self.usage, name, getattr(self.usage, name) + amount)

    def _append(self, content: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(f"\n{json.dumps(content)}")  # the break first, so that a cut line spoils no other


def _facts(settings: JudgeSettings, usage: Usage) -> dict[str, Any]:
    facts: dict[str, Any] = {"model": settings.model, **asdict(usage)}
    if settings.input_price is not None and settings.output_price is not None:
        tokens = usage.input_tokens * settings.input_price + usage.output_tokens * settings.output_price
        facts["cost"] = round(tokens / 1e6, 6)
    return facts
