"""Paid answers, kept so that none is asked for twice."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from alora.llm.client import JudgeUsage
from alora.received import decode

Kept = TypeVar("Kept")


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
