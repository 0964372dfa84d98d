"""One question at a time to an OpenAI-compatible endpoint; every failure is counted."""

import json
import operator
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum, auto
from typing import Any, Self, TypeVar

from alora.config.schema import JudgeSettings
from alora.config.secrets import redacted
from alora.config.setting import is_server
from alora.data.conversation import Conversation
from alora.errors import ConfigError
from alora.llm.judge_prompt import Answer, messages, read_answer
from alora.policy import Policy
from alora.transport import Http, Unreachable, Waiting, wait_of

FAILURES_IN_A_ROW = 20  # then the endpoint counts as down
LONGEST_PAUSE = 30.0  # seconds between two tries, whatever the endpoint asks for
MOST_WORDS = 10_000  # characters of a refusal that are read
_OPTIONAL = ("temperature", "max_tokens", "response_format")  # some models refuse them by name
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


class _Status(Exception):
    """An answer other than 200: its status, its words, and the seconds that it asks to wait."""

    def __init__(self, status: int, words: str, wait: float) -> None:
        super().__init__(status)
        self.status, self.words, self.wait = status, words, wait


class JudgeClient:
    """Asks one model. Safe to share between threads.

    Args:
        settings: ``judge``; its ``url`` and ``model`` are set.
        pause: seconds before the second try; doubled for each further one.
    """

    def __init__(self, settings: JudgeSettings, pause: float = 1.0) -> None:
        self._settings, self._pause = settings, pause
        url = str(settings.url)
        self.named = f"judge.url={redacted(url)}"  # as messages name it
        if not is_server(url):
            raise ConfigError(
                f"judge.url={redacted(url)!r} cannot be used; give http://HOST:PORT/v1 or https://HOST/v1"
            )
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._key_given = bool(os.environ.get(settings.api_key_env))
        self._wait = Waiting(lambda: Http(key=settings.api_key_env))
        self._refused: set[str] = set()  # names of options
        self._lock = threading.Lock()
        self.usage = JudgeUsage()
        self.refusal = ""

    def close(self) -> None:
        self._wait.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, policy: Policy, conversation: Conversation) -> Answer | NoAnswer:
        """The judge's answer, or why there is none; see :meth:`complete`."""
        request = messages(policy, conversation, self._settings.max_characters)
        return self.complete(request, lambda text: read_answer(text, policy))

    def complete(
        self, request: Sequence[dict[str, str]], read: Callable[[str | None], Said | None], **options: Any
    ) -> Said | NoAnswer:
        """The model's answer to ``request`` as ``read`` returns it, or why there is none after all tries; ``refusal``
        says what went wrong last. ``options`` of the request go before the judge's own."""
        wanted = {"temperature": 0.0, "max_tokens": self._settings.max_tokens} | options
        attempt = 0
        while True:
            asked_to_wait, why = 0.0, NoAnswer.FAILED
            options = {name: value for name, value in wanted.items() if name not in self._refused}
            try:
                text = self._complete(request, options)
            except _Status as error:
                self._count(failed_requests=1)
                if self._dropped_option(error, options):
                    continue  # no try of its own: there are two options to lose
                self._stop(error, options.get("model") or self._settings.model)
                self.refusal = f"HTTP {error.status}: {error.words[:300]}"
                if error.status in (400, 413, 422):
                    return NoAnswer.FILTERED if _FILTER.search(error.words) else NoAnswer.REFUSED
                asked_to_wait = error.wait
            except Unreachable:
                self._count(failed_requests=1)
            except ConfigError:
                raise
            except (ValueError, AttributeError, TypeError, LookupError):
                # Bodies that are no chat completion: cut JSON, HTML, missing choices.
                self._count(failed_requests=1)
                self.refusal = "HTTP 200: no chat completion; an endpoint's URL ends in its version (/v1), as a rule"
            else:
                answer = read(text)
                if answer is not None:
                    return answer
                self._count(unreadable_answers=1)
                why = NoAnswer.UNREADABLE
                if attempt >= 1:
                    return why  # at temperature 0 it would say the same again
            if attempt >= self._settings.retries:
                return why
            time.sleep(self._pause_before(attempt, asked_to_wait))
            attempt += 1

    def _complete(self, request: Sequence[dict[str, str]], options: Mapping[str, Any]) -> str | None:
        self._count(requests=1)
        body = {"model": self._settings.model, "messages": list(request), **options}
        answer, text = self._wait(lambda http: http.exchange(self._url, body, self._settings.timeout))
        if answer.status_code != 200:
            raise _Status(answer.status_code, text[:MOST_WORDS], wait_of(answer.headers.get("retry-after")))
        reply = json.loads(text)
        usage = reply.get("usage")
        spent = usage.get if isinstance(usage, dict) else dict[str, Any]().get
        self._count(input_tokens=_tokens(spent("prompt_tokens")), output_tokens=_tokens(spent("completion_tokens")))
        content = reply["choices"][0]["message"]["content"]
        return content if isinstance(content, str) else None

    def _dropped_option(self, error: _Status, sent: Mapping[str, Any]) -> bool:
        """Leave out a setting that the model does not accept; True when the request has changed and should be sent
        again. Compare with what this request sent: another thread may have dropped the setting since."""
        if error.status not in (400, 422):
            return False
        named = next((name for name in _OPTIONAL if name in sent and _not_taken(name, error.words)), None)
        with self._lock:
            if named is not None:
                self._refused.add(named)
            return not self._refused.isdisjoint(sent)

    def _stop(self, error: _Status, model: str | None) -> None:
        if error.status in (401, 403):
            state = "was refused" if self._key_given else "is missing"
            raise ConfigError(
                f"{self.named}: HTTP {error.status}, the key in ${self._settings.api_key_env} {state}; export it, or "
                "name another variable with judge.api_key_env"
            ) from error
        if error.status == 404:
            raise ConfigError(
                f"{self.named}: HTTP 404; check that the URL ends with its version (/v1) and that model {model!r} is "
                "served there (judge.model, generate.judges)"
            ) from error
        if error.status == 402:
            raise ConfigError(f"{self.named}: HTTP 402, it requires payment: {error.words[:300]}") from error
        if error.status == 405:
            raise ConfigError(f"{self.named} takes no chat completions: {error.words[:300]}") from error

    def _pause_before(self, attempt: int, asked: float) -> float:
        grown = self._pause * 2**attempt * (1 + random.random() / 4)  # apart, so that threads do not come back at once
        return min(LONGEST_PAUSE, max(grown, asked))

    def _count(self, **more: int) -> None:
        with self._lock:
            self.usage += JudgeUsage(**more)


def _not_taken(name: str, words: str) -> bool:
    """Whether an error says that the model does not accept a setting; errors about length name settings, too."""
    near = rf"{_NOT_TAKEN}.{{0,60}}\b{name}\b|\b{name}\b.{{0,60}}{_NOT_TAKEN}"
    return re.search(near, words, re.IGNORECASE) is not None and not _TOO_LONG.search(words)


def _tokens(value: Any) -> int:
    """A count of tokens as endpoints give it: a number, digits, or nothing (0)."""
    try:
        return max(0, int(float(value)))
    except (TypeError, ValueError, OverflowError):
        return 0
