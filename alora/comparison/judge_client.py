"""One question at a time to an OpenAI-compatible endpoint, by the ``openai`` package; every failure is counted."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alora.comparison.judge_prompt import Answer, messages, read_answer
from alora.config.schema import JudgeSettings
from alora.conversation import Conversation
from alora.errors import ConfigError, MissingDependency
from alora.policy import Policy

LONGEST_PAUSE = 30.0  # seconds between two tries, whatever the endpoint asks for
NO_KEY = "no-key"  # the package insists on one; local servers do not look at it
_OPTIONAL = ("temperature", "max_tokens")  # some models refuse them by name


@dataclass
class Usage:
    """What a judge has cost so far. ``input_tokens`` and ``output_tokens`` are the endpoint's own count."""

    requests: int = 0
    failed_requests: int = 0
    unreadable_answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class JudgeClient:
    """Asks one model. Safe to share between threads.

    Args:
        settings: ``judge``; its ``url`` and ``model`` are set.
        pause: seconds before the second try; doubled for each further one.

    Raises:
        MissingDependency: the package ``openai`` is not installed.
        ConfigError: the URL cannot be used.
    """

    def __init__(self, settings: JudgeSettings, pause: float = 1.0) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingDependency(
                f"a judge needs the package openai ({error}); pip install 'alora-toolkit[judge]'"
            ) from error
        self._openai, self._settings, self._pause = openai, settings, pause
        self._key_given = bool(os.environ.get(settings.api_key_env))
        try:
            self._client = openai.OpenAI(
                base_url=settings.url,
                api_key=os.environ.get(settings.api_key_env) or NO_KEY,
                timeout=settings.timeout,
                max_retries=0,  # done here, where it is counted, and where an unreadable answer is a failure too
            )
        except Exception as error:  # httpx refuses odd URLs with classes of its own
            raise ConfigError(f"judge.url={settings.url!r} cannot be used: {error}") from error
        self._options: dict[str, Any] = {"temperature": 0.0, "max_tokens": settings.max_tokens}
        self._lock = threading.Lock()
        self.usage = Usage()

    def __enter__(self) -> JudgeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, policy: Policy, conversation: Conversation) -> Answer | None:
        """The judge's answer; None when the endpoint kept failing or gave nothing that can be read.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the request itself, so asking again is of no use.
        """
        request = messages(policy, conversation, self._settings.max_characters)
        for attempt in range(self._settings.retries + 1):
            asked_to_wait = 0.0
            try:
                text = self._complete(request)
            except self._openai.APIStatusError as error:
                self._count(failed_requests=1)
                if self._dropped_option(error):
                    continue
                self._refuse(error)
                asked_to_wait = _retry_after(error)
            except (self._openai.OpenAIError, ValueError, AttributeError, TypeError, IndexError):
                # Connection, timeout, and bodies that are no chat completion: cut JSON, HTML, missing choices.
                self._count(failed_requests=1)
            else:
                answer = read_answer(text, policy)
                if answer is not None:
                    return answer
                self._count(unreadable_answers=1)
                if attempt >= 1:
                    return None  # at temperature 0 it would say the same again
            if attempt < self._settings.retries:
                time.sleep(self._wait(attempt, asked_to_wait))
        return None

    def _complete(self, request: Sequence[dict[str, str]]) -> str | None:
        self._count(requests=1)
        with self._lock:
            options = dict(self._options)
        complete: Any = self._client.chat.completions.create  # typed for literal messages, which these are not
        reply = complete(model=self._settings.model, messages=list(request), **options)
        if isinstance(reply, str):  # the package hands a body through that is not JSON
            raise ValueError("the answer is not JSON")
        if reply.usage is not None:
            self._count(input_tokens=reply.usage.prompt_tokens or 0, output_tokens=reply.usage.completion_tokens or 0)
        content = reply.choices[0].message.content
        return content if isinstance(content, str) else None

    def _dropped_option(self, error: Any) -> bool:
        """Leave out a setting that the model refuses by name; True when there was one."""
        if error.status_code != 400:
            return False
        with self._lock:
            named = next((name for name in _OPTIONAL if name in self._options and name in str(error)), None)
            return named is not None and self._options.pop(named, None) is not None

    def _refuse(self, error: Any) -> None:
        place = f"judge.url={self._settings.url}"
        if error.status_code in (401, 403):
            state = "was refused" if self._key_given else "is missing"
            raise ConfigError(
                f"{place}: HTTP {error.status_code}, the key in ${self._settings.api_key_env} {state}; export it, or "
                "name another variable with judge.api_key_env"
            ) from error
        if error.status_code == 404:
            raise ConfigError(
                f"{place}: HTTP 404; check that the URL ends with its version (/v1) and that judge.model="
                f"{self._settings.model} is served there"
            ) from error
        if error.status_code in (400, 405, 422):
            raise ConfigError(
                f"{place} refuses the request with HTTP {error.status_code}: {str(error)[:300]}"
            ) from error

    def _wait(self, attempt: int, asked: float) -> float:
        grown = self._pause * 2**attempt * (1 + random.random() / 4)  # apart, so that threads do not come back at once
        return min(LONGEST_PAUSE, max(grown, asked))

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, amount in more.items():
                setattr(self.usage, name, getattr(self.usage, name) + amount)


def _retry_after(error: Any) -> float:
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
