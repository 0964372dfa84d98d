"""Requests that are answered once: every answer is kept in ``calls.jsonl``, and what it cost counts towards the budget.

A run that was killed and called again reads the answers that it has and asks for the others. A request that failed is
not kept, so the next call asks again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from alora.comparison.judge_client import JudgeClient, NoAnswer, Usage
from alora.config.schema import GenerateSettings, JudgeSettings
from alora.errors import RunError

FAILURES_IN_A_ROW = 20  # then the endpoint counts as down
Said = TypeVar("Said")


class BudgetSpent(Exception):
    """``generate.max_calls`` or ``generate.max_cost`` is reached."""


class Calls(JudgeClient):
    """Asks one model, within a budget. Safe to share between threads.

    ``max_calls`` is exact. ``max_cost`` is checked before each request, so requests that are under way at the limit
    (``judge.concurrency`` at most) are paid on top.
    """

    def __init__(self, file: Path, settings: GenerateSettings, judge: JudgeSettings, pause: float = 1.0) -> None:
        super().__init__(judge, pause)
        self._file, self._limits, self._endpoint = file, settings, judge
        self._written = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self._before = Usage()
        self._noted = Usage()
        self._failed_in_a_row = 0
        self.answered = 0  # from the file, without a request
        self._read()
        self._begun = self._before.requests

    @property
    def total(self) -> Usage:
        """All calls of this folder, earlier runs included."""
        return self._before + self.usage

    @property
    def cost(self) -> float:
        """Of all calls, in the currency of ``judge.input_price``; 0 without prices."""
        total, judge = self.total, self._endpoint
        input_cost = total.input_tokens * (judge.input_price or 0)
        return (input_cost + total.output_tokens * (judge.output_price or 0)) / 1e6

    def question(
        self, request: Sequence[dict[str, str]], read: Callable[[str | None], Said | None], **options: Any
    ) -> Said | None:
        """What ``read`` makes of the answer; None when the model gave none that can be read, or refused.

        Raises:
            BudgetSpent: the request would be one too many.
            ConfigError: the endpoint refuses the key, the model or the method.
            RunError: it has not answered any of the last requests.
        """
        asked = [self._endpoint.model, list(request), options]  # without the URL: a local server's port may change
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        if key in self._known:
            self.answered += 1
            return read(self._known[key].get("text"))
        heard: list[str | None] = [None]

        def keep(text: str | None) -> Said | None:
            heard[0] = text
            return read(text)

        answer = self.complete(request, keep, **options)
        if answer is NoAnswer.FAILED:
            self._wear()
            return None
        self._failed_in_a_row = 0
        self._append({"key": key, "text": heard[0]} | ({"none": answer.name} if isinstance(answer, NoAnswer) else {}))
        return None if isinstance(answer, NoAnswer) else answer

    def _complete(self, request: Sequence[dict[str, str]], options: Mapping[str, Any]) -> str | None:
        with self._written:
            most_calls, most_cost = self._limits.max_calls, self._limits.max_cost
            if most_calls is not None and self._begun >= most_calls:
                raise BudgetSpent(f"generate.max_calls={most_calls}")
            if most_cost is not None and self.cost >= most_cost:
                raise BudgetSpent(f"generate.max_cost={most_cost:g}")
            self._begun += 1
        return super()._complete(request, options)

    def _wear(self) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            raise RunError(
                f"judge.url={self._endpoint.url}: the last {FAILURES_IN_A_ROW} requests failed; see whether it is up, "
                "then give the same command again: what was answered is kept"
            )

    def _read(self) -> None:
        for line in self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []:
            try:
                content = json.loads(line)
                self._before += Usage(**content.pop("usage"))
                if content:
                    self._known[content["key"]] = content
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # cut off: it is asked again

    def _append(self, content: dict[str, Any]) -> None:
        """One line, with what was spent since the line before it."""
        with self._written:
            spent = replace(self.usage)
            since = asdict(spent - self._noted)
            self._noted = spent
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(
                    f"\n{json.dumps(content | {'usage': since})}"
                )  # the break first: a cut line spoils no other

    def __exit__(self, *problem: object) -> None:
        if self.usage != self._noted:  # requests that failed cost, too
            self._append({})
        super().__exit__(*problem)
