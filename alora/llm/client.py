"""One question at a time to an OpenAI-compatible endpoint; every failure is counted."""

import json
import operator
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum, auto
from typing import Any, Self, TypeVar

import httpx2

from alora.config.schema import JudgeSettings
from alora.config.secrets import key_in, redacted
from alora.data.conversation import Conversation
from alora.errors import ConfigError, RunError
from alora.llm.judge_prompt import Answer, messages, read_answer
from alora.policy import Policy
from alora.transport import KEPT, hidden, proxies_read, wait_of

FAILURES_IN_A_ROW = 20  # then the endpoint counts as down
LONGEST_PAUSE = 30.0  # seconds between two tries, whatever the endpoint asks for
MOST_WORDS = 10_000  # characters of a refusal that are read
_OPTIONAL = ("temperature", "max_tokens", "response_format")  # some models refuse them by name
_COUNTED = {"input_tokens": "prompt", "output_tokens": "completion"}
_NOT_TAKEN = (
    r"(?:unsupported|not supported|does(?: not|n't) support|"
    r"unknown|unrecogni[sz]ed|unexpected|not permitted|deprecated)"
)
_TOO_LONG = re.compile(r"context.?(?:length|window|size)|too (?:long|large)", re.IGNORECASE)
_FILTER = re.compile(
    r"content.?(?:filter|management|policy)|responsible.?ai|data.?inspection|moderation|flagged|usage polic|safety",
    re.IGNORECASE,
)

Said = TypeVar("Said")


class NoAnswer(Enum):
    """Why a row has no answer. Asking again can change only the first."""

    FAILED = auto()  # connection, timeout, HTTP 429 or 5xx, a body that is not a chat completion
    UNREADABLE = auto()  # words, but no label
    REFUSED = auto()  # HTTP 400, 413 or 422: this row is too long, or no request of ours is taken
    FILTERED = auto()  # the same, and it says that the content is what it refuses


@dataclass
class JudgeUsage:
    """What a judge has cost so far. ``input_tokens`` and ``output_tokens`` are the endpoint's own count."""

    requests: int = 0
    failed_requests: int = 0
    unreadable_answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, astuple(self), astuple(other)))

    def cost(self, judge: JudgeSettings) -> float:
        """In the currency of ``judge.input_price``; 0 without prices."""
        prices = (judge.input_price or 0, judge.output_price or 0)
        return (self.input_tokens * prices[0] + self.output_tokens * prices[1]) / 1e6


class JudgeClient:
    """Asks one model, also from several threads. ``pause``: seconds before the second try, doubled for each other."""

    def __init__(self, settings: JudgeSettings, pause: float = 1.0) -> None:
        self._settings, self._pause = settings, pause
        self.named = f"judge.url={redacted(str(settings.url))}"  # as messages name it
        self._url, self._key = f"{str(settings.url).rstrip('/')}/chat/completions", key_in(settings.api_key_env)
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx2.Limits(max_connections=settings.concurrency, keepalive_expiry=KEPT)
        with proxies_read():
            self._http = httpx2.Client(headers=headers, timeout=settings.timeout, limits=limits)
        self._refused: set[str] = set()  # names of options
        self._lock = threading.Lock()
        self._answered, self._in_a_row = False, 0
        self.usage = JudgeUsage()
        self.refusal = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, policy: Policy, conversation: Conversation) -> Answer | NoAnswer:
        """The judge's answer, or why there is none; see :meth:`complete`."""
        request = messages(policy, conversation, self._settings.max_characters)
        return self.complete(request, lambda text: read_answer(text, policy))

    def complete(
        self, request: Sequence[dict[str, str]], read: Callable[[str | None], Said | None],
        spent: JudgeUsage | None = None, **options: Any,
    ) -> Said | NoAnswer:  # fmt: skip
        """The model's answer to ``request`` as ``read`` returns it, or why there is none after all tries; ``refusal``
        says what went wrong last. What it takes is added to ``spent``. ``options`` go before the judge's own.
        ConfigError where the endpoint takes no such request at all, RunError after too many without an answer."""
        spent = JudgeUsage() if spent is None else spent
        body = {"model": self._settings.model, "messages": list(request), "temperature": 0.0,
                "max_tokens": self._settings.max_tokens} | options  # fmt: skip
        said, wait = self._once(body, read, spent)
        for attempt in range(self._settings.retries):
            # An answer that cannot be read is asked for once more: at temperature 0 it says the same again.
            if said is not NoAnswer.FAILED and (said is not NoAnswer.UNREADABLE or attempt):
                break
            grown = self._pause * 2**attempt * (1 + random.random() / 4)  # apart: threads do not come back at once
            time.sleep(min(LONGEST_PAUSE, max(grown, wait)))
            said, wait = self._once(body, read, spent)
        if isinstance(said, NoAnswer):
            return self._wear(said)
        self.answered()
        return said

    def answered(self) -> None:
        """An answer is there, of this call or an earlier one: the endpoint can give some."""
        self._answered, self._in_a_row = True, 0

    def _once(
        self, body: Mapping[str, Any], read: Callable[[str | None], Said | None], spent: JudgeUsage
    ) -> tuple[Said | NoAnswer, float]:
        """What comes of one try, and after how many seconds the endpoint wants the next one."""
        reply, words = self._post(body, spent)
        if reply is None:
            return NoAnswer.FAILED, 0.0
        if reply.status_code == 200:
            return self._read(reply, read, spent), 0.0
        self._stop(reply, words, body["model"])
        self.refusal = f"HTTP {reply.status_code}: {words[:300]}"
        if reply.status_code in (400, 413, 422):
            return NoAnswer.FILTERED if _FILTER.search(words) else NoAnswer.REFUSED, 0.0
        return NoAnswer.FAILED, wait_of(reply.headers.get("retry-after"))

    def _post(self, body: Mapping[str, Any], spent: JudgeUsage) -> tuple[httpx2.Response | None, str]:
        """The reply to a request, without the settings that the model refuses by name, and what a refusal says; None
        where none came."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self._refused}
            self._gate()
            self._count(spent, requests=1)
            try:
                reply = self._http.post(self._url, content=json.dumps(sent))
            except httpx2.HTTPError:
                reply = None
            words = "" if reply is None else hidden(reply.text, self._key)[:MOST_WORDS]
            if reply is None or reply.status_code != 200:
                self._count(spent, failed_requests=1)
            if reply is not None and reply.status_code in (400, 422):
                self._refused |= {*[name for name in _OPTIONAL if name in sent and _not_taken(name, words)][:1]}
                if not self._refused.isdisjoint(sent):  # this thread or another one has left a setting out since
                    continue
            return reply, words

    def _gate(self) -> None:
        """Whether one more request may be sent: an error where it may not."""

    def _read(
        self, reply: httpx2.Response, read: Callable[[str | None], Said | None], spent: JudgeUsage
    ) -> Said | NoAnswer:
        try:
            content = reply.json()
            text, usage = content["choices"][0]["message"]["content"], content.get("usage") or {}
            counts = {name: int(usage.get(f"{part}_tokens") or 0) for name, part in _COUNTED.items()}
        except (ValueError, TypeError, LookupError, AttributeError):  # cut JSON, HTML, missing choices
            self._count(spent, failed_requests=1)
            self.refusal = "HTTP 200: no chat completion; an endpoint's URL ends in its version (/v1), as a rule"
            return NoAnswer.FAILED
        said = read(text if isinstance(text, str) else None)
        self._count(spent, unreadable_answers=int(said is None), **counts)
        return NoAnswer.UNREADABLE if said is None else said

    def _wear(self, why: NoAnswer) -> NoAnswer:
        """``why``, or the end after too many in a row: the endpoint is at fault then, not the requests.

        A filtered request is not counted, nor is an answer that cannot be read once another one could.
        """
        if why is not NoAnswer.FILTERED and not (why is NoAnswer.UNREADABLE and self._answered):
            self._in_a_row += 1
        if self._in_a_row < FAILURES_IN_A_ROW:
            return why
        if why is NoAnswer.REFUSED and not self._answered:
            raise ConfigError(f"{self.named} refuses every request: {self.refusal}; see the judge's settings")
        advice = "see whether it is up"
        if why is NoAnswer.UNREADABLE:
            advice = "they hold no answer; raise judge.max_tokens if it thinks before it answers"
        elif self.refusal:
            advice = f"it says {self.refusal}"
        raise RunError(
            f"{self.named}: the last {self._in_a_row} requests got no answer that can be read; {advice}; then give the "
            "same command again: what was answered is kept"
        )

    def _stop(self, answer: httpx2.Response, words: str, model: str | None) -> None:
        status, state = answer.status_code, "was refused" if self._key else "is missing"
        key = f"the key in ${self._settings.api_key_env} {state}; export it, or name another with judge.api_key_env"
        remedies = {
            401: key,
            402: f"it requires payment: {words[:300]}",
            403: key,
            404: f"check that the URL ends with its version (/v1) and that model {model!r} is served there "
            "(judge.model, generate.judges)",
            405: f"it takes no chat completions: {words[:300]}",
        }
        if 300 <= status < 400:
            raise ConfigError(f"{self.named} redirects to {redacted(answer.headers.get('Location', ''))}; give that")
        if status in remedies:
            raise ConfigError(f"{self.named}: HTTP {status}, {remedies[status]}")

    def _count(self, spent: JudgeUsage, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                for usage in (self.usage, spent):
                    setattr(usage, name, getattr(usage, name) + count)


def _not_taken(name: str, words: str) -> bool:
    """Whether an error says that the model does not accept a setting; errors about length name settings, too."""
    near = rf"{_NOT_TAKEN}.{{0,60}}\b{name}\b|\b{name}\b.{{0,60}}{_NOT_TAKEN}"
    return re.search(near, words, re.IGNORECASE) is not None and not _TOO_LONG.search(words)
