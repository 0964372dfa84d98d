"""Rows that another model labels: conversation and rule go to an endpoint, a label and a confidence come back. Answers
are kept row by row, so that none is asked for twice."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from alora.config.schema import JudgeSettings
from alora.data.conversation import LabelledConversation
from alora.errors import ConfigError
from alora.llm.calls import Answers
from alora.llm.client import JudgeClient, JudgeUsage, NoAnswer
from alora.llm.judge_prompt import Answer, messages
from alora.policy import Policy
from alora.received import decode
from alora.text import note

SURE = 0.995  # what a confidence of 100, or none at all, counts as


def require_settings(settings: JudgeSettings) -> None:
    """Refuse settings without an endpoint, or with half of the prices, which would leave out part of the cost."""
    if settings.url is None:
        raise ConfigError("a judge needs judge.url=https://HOST/v1 and judge.model=NAME")
    if (settings.input_price is None) != (settings.output_price is None):
        missing = "input_price" if settings.input_price is None else "output_price"
        raise ConfigError(f"cost needs both prices; add judge.{missing}=0 if there is none, or leave out the other")


def ask(
    policy: Policy, parts: Mapping[str, Sequence[LabelledConversation]], file: Path, settings: JudgeSettings
) -> tuple[dict[str, dict[int, Answer]], JudgeUsage, Counter[NoAnswer]]:
    """The answers on each part of the rows by row index, what all calls have used, and how many rows have none.
    Answers are kept in ``file``."""
    silent, given, book = Counter[NoAnswer](), {name: dict[int, Answer]() for name in parts}, Answers(file, read_kept)

    def ask_row(key: str, row: LabelledConversation) -> Answer | NoAnswer:
        if known := book.known.get(key):
            client.answered()
            return known
        answer = client.ask(policy, row.conversation)
        if isinstance(answer, Answer):
            book.add(key, answer, **asdict(answer))  # at once: a slower row before it may end the asking
        return answer

    with JudgeClient(settings) as client, ThreadPoolExecutor(settings.concurrency) as pool:
        try:
            for name, rows in parts.items():
                keys = [_key(policy, row, settings) for row in rows]
                order = sorted(range(len(rows)), key=keys.__getitem__)  # files are sorted by label: mix them
                answers = pool.map(ask_row, sorted(keys), [rows[index] for index in order])
                title, count = f"asking about {policy.id}", len(rows)
                with tqdm(answers, desc=title, total=count, unit="row", disable=count < 2) as bar:
                    for index, answer in zip(order, bar, strict=True):
                        if isinstance(answer, Answer):
                            given[name][index] = answer
                        else:
                            silent[answer] += 1
        except BaseException:
            pool.shutdown(cancel_futures=True)  # requests under way are paid for as well
            raise
        finally:
            book.add_usage(client.usage)
            used = client.usage  # of this call alone, without the answers of earlier ones
            cost = "" if settings.input_price is None else f", cost {used.cost(settings):.4f}"
            tokens = f"{used.input_tokens} input and {used.output_tokens} output tokens"
            note(f"{policy.id}: {used.requests} requests, {tokens}{cost}")
    if silent:  # an endpoint's words may quote a row, so they go into no file
        reasons = ", ".join(f"{count} {why.name.lower()}" for why, count in silent.items())
        words = f"; last refusal: {client.refusal}" if client.refusal else ""
        note(f"{policy.id}: {silent.total()} rows have no answer ({reasons}{words})")
    return given, book.usage, silent


def _key(policy: Policy, row: LabelledConversation, settings: JudgeSettings) -> str:
    """Digest of the request and of the model asked: an answer holds for nothing else."""
    asked = [settings.url, settings.model, messages(policy, row.conversation, settings.max_characters)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def read_kept(kept: Mapping[str, Any]) -> Answer:
    return decode(Answer, {name: kept[name] for name in ("label_id", "confidence")})
