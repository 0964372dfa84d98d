"""Paid answers, kept so that none is asked for twice. In ``calls.jsonl`` they count towards the budget.

A run that was killed and called again reads the answers that it has and asks for the others. A request that failed or
was refused is not kept, so the next call asks again; a filtered one is kept.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from alora.config.schema import GenerateSettings, JudgeSettings
from alora.errors import ConfigError
from alora.llm.client import JudgeClient, JudgeUsage, NoAnswer
from alora.received import decode

Said = TypeVar("Said")
Kept = TypeVar("Kept")
_ASK_AGAIN = (NoAnswer.FAILED, NoAnswer.REFUSED)


class Answers(Generic[Kept]):
    """Answers by key, one JSON line each, and what they took; a line that was cut off is asked again.

    Safe to share between threads.
    """

    def __init__(self, file: Path, read: Callable[[Mapping[str, Any]], Kept]) -> None:
        self._file, self._lock = file, threading.Lock()
        self.known: dict[str, Kept] = {}
        self.usage = JudgeUsage()
        file.parent.mkdir(parents=True, exist_ok=True)
        self._cut = ""  # ends a line that a kill cut, so that it spoils no other
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
            self._cut = "" if line.endswith(b"\n") else "\n"
            try:
                content = json.loads(line)
                known = {content["key"]: read(content)} if "key" in content else {}
                self.usage += decode(JudgeUsage, content.get("usage", {}))
                self.known |= known
            except (ValueError, KeyError, TypeError, AttributeError):
                continue

    def add(self, key: str, answer: Kept, **content: Any) -> None:
        with self._lock:
            self.known[key] = answer
            self._append({"key": key} | content)

    def add_usage(self, usage: JudgeUsage) -> None:
        with self._lock:
            self.usage += usage
            self._append({"usage": asdict(usage)})

    def _append(self, content: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(f"{self._cut}{json.dumps(content)}\n")
        self._cut = ""


class BudgetSpent(Exception):
    """``generate.max_calls`` or ``generate.max_cost`` is reached, or :meth:`Calls.stop` was called."""


@dataclass(frozen=True)
class Reply(Generic[Said]):
    """What was read from an answer, the key of its line in ``calls.jsonl``, and what it took."""

    said: Said | None  # None: it cannot be read, or there is none
    key: str
    usage: JudgeUsage
    failed: bool = False  # or refused: the next call asks again


class Calls(JudgeClient):
    """Asks one model, within a budget. Safe to share between threads.

    ``max_calls`` is exact. ``max_cost`` is checked before each request, so requests that are under way at the limit
    (``judge.concurrency`` at most) are paid on top.
    """

    def __init__(self, file: Path, settings: GenerateSettings, judge: JudgeSettings, pause: float = 1.0) -> None:
        super().__init__(judge, pause)
        self._limits = settings
        self._answers = Answers(file, lambda kept: (decode(str | None, kept["text"]), JudgeUsage(**kept["usage"])))
        self._before = self._answers.usage
        self._begun = self._before.requests
        self._asking: dict[str, threading.Lock] = {}  # by key: what two threads ask at once is asked once
        self._stopped = False

    @property
    def total(self) -> JudgeUsage:
        """All calls of this folder, earlier runs included."""
        return self._before + self.usage

    @property
    def cost(self) -> float:
        return self.total.cost(self._settings)

    def stop(self) -> None:
        """Send nothing from now on; what is under way is still answered and kept."""
        self._stopped = True

    def question(
        self, request: Sequence[dict[str, str]], read: Callable[[str | None], Said | None], **options: Any
    ) -> Reply[Said]:
        asked = [self._settings.model, list(request), options]  # without the URL: a local server's port may change
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        with self._asking.setdefault(key, threading.Lock()):
            if known := self._answers.known.get(key):
                return Reply(read(known[0]), key, known[1])
            return self._ask(key, request, read, options)

    def _ask(
        self, key: str, request: Sequence[dict[str, str]], read: Callable[[str | None], Said | None],
        options: Mapping[str, Any],
    ) -> Reply[Said]:  # fmt: skip
        text, spent, answer = None, JudgeUsage(), NoAnswer.FAILED

        def keep(said: str | None) -> Said | None:
            nonlocal text
            text = said
            return read(said)

        try:
            answer = self.complete(request, keep, spent, **options)
        finally:
            if answer not in _ASK_AGAIN:
                self._answers.add(key, (text, spent), text=text, usage=asdict(spent))
            elif spent.requests:
                self._answers.add_usage(spent)
        heard = spent.requests > spent.failed_requests
        counted = spent.input_tokens and (spent.output_tokens or not text)
        if heard and self._limits.max_cost is not None and not counted:
            raise ConfigError(
                f"{self.named}: its answers do not say how many tokens they took (usage), so generate.max_cost "
                "cannot hold; set generate.max_calls in its place"
            )
        return Reply(None if isinstance(answer, NoAnswer) else answer, key, spent, answer in _ASK_AGAIN)

    def _gate(self) -> None:
        with self._lock:
            if self._stopped:
                raise BudgetSpent("stopped")
            most_calls, most_cost = self._limits.max_calls, self._limits.max_cost
            if most_calls is not None and self._begun >= most_calls:
                raise BudgetSpent(f"generate.max_calls={most_calls}")
            if most_cost is not None and self.cost >= most_cost:
                raise BudgetSpent(f"generate.max_cost={most_cost:g}")
            self._begun += 1
