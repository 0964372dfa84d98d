"""Requests that are answered once: every answer is kept in ``calls.jsonl``, and what it cost counts towards the budget.

A run that was killed and called again reads the answers that it has and asks for the others. A request that failed is
not kept, so the next call asks again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from alora.comparison.judge_client import JudgeClient, NoAnswer, Usage
from alora.config.schema import GenerateSettings, JudgeSettings
from alora.errors import RunError

FAILURES_IN_A_ROW = 20  # then the endpoint counts as down
Said = TypeVar("Said")


class BudgetSpent(Exception):
    """``generate.max_calls`` or ``generate.max_cost`` is reached."""


@dataclass(frozen=True)
class Reply(Generic[Said]):
    """What was read from an answer, the key of its line in ``calls.jsonl``, and what it took."""

    said: Said | None  # None: it cannot be read, or there is none
    key: str
    usage: Usage


class Calls(JudgeClient):
    """Asks one model, within a budget. Safe to share between threads.

    ``max_calls`` is exact. ``max_cost`` is checked before each request, so requests that are under way at the limit
    (``judge.concurrency`` at most) are paid on top.
    """

    def __init__(self, file: Path, settings: GenerateSettings, judge: JudgeSettings, pause: float = 1.0) -> None:
        super().__init__(judge, pause)
        self._file, self._limits = file, settings
        self._written = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self._before = Usage()
        self._here = threading.local()  # spent: by the question that this thread asks
        self._failed_in_a_row = 0
        self._read()
        self._begun = self._before.requests

    @property
    def total(self) -> Usage:
        """All calls of this folder, earlier runs included."""
        return self._before + self.usage

    @property
    def cost(self) -> float:
        """Of all calls; 0 without prices."""
        return self.total.cost(self._settings)

    def question(
        self, request: Sequence[dict[str, str]], read: Callable[[str | None], Said | None], **options: Any
    ) -> Reply[Said]:
        """What ``read`` makes of the answer.

        Raises:
            BudgetSpent: the request would be one too many.
            ConfigError: the endpoint refuses the key, the model or the method.
            RunError: it has not answered any of the last requests.
        """
        asked = [self._settings.model, list(request), options]  # without the URL: a local server's port may change
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        if line := self._known.get(key):
            return Reply(read(line["text"]), key, Usage(**line["usage"]))
        heard: list[str | None] = [None]

        def keep(text: str | None) -> Said | None:
            heard[0] = text
            return read(text)

        self._here.spent = Usage()
        content: dict[str, Any] = {}  # of a request that failed only its cost
        try:
            answer = self.complete(request, keep, **options)
            if answer is not NoAnswer.FAILED:
                content = {"key": key, "text": heard[0]}
        finally:
            if self._here.spent.requests:
                self._append(content | {"usage": asdict(self._here.spent)})
        self._wear(answer)
        return Reply(None if isinstance(answer, NoAnswer) else answer, key, self._here.spent)

    def _count(self, **more: int) -> None:
        super()._count(**more)
        self._here.spent += Usage(**more)

    def _complete(self, request: Sequence[dict[str, str]], options: Mapping[str, Any]) -> str | None:
        with self._written:
            most_calls, most_cost = self._limits.max_calls, self._limits.max_cost
            if most_calls is not None and self._begun >= most_calls:
                raise BudgetSpent(f"generate.max_calls={most_calls}")
            if most_cost is not None and self.cost >= most_cost:
                raise BudgetSpent(f"generate.max_cost={most_cost:g}")
            self._begun += 1
        return super()._complete(request, options)

    def _wear(self, answer: object) -> None:
        self._failed_in_a_row = self._failed_in_a_row + 1 if answer is NoAnswer.FAILED else 0
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            raise RunError(
                f"judge.url={self._settings.url}: the last {FAILURES_IN_A_ROW} requests failed; see whether it is up, "
                "then give the same command again: what was answered is kept"
            )

    def _read(self) -> None:
        for line in self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []:
            try:
                content = json.loads(line)
                self._before += Usage(**content["usage"])
                if "key" in content:
                    self._known[content["key"]] = {"text": content["text"], "usage": content["usage"]}
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # cut off: it is asked again

    def _append(self, content: dict[str, Any]) -> None:
        with self._written:
            if "key" in content:
                self._known[content["key"]] = content
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(f"\n{json.dumps(content)}")  # the break first: a cut line spoils no other
