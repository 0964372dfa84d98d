"""Completions of an OpenAI-compatible vLLM server: one request for a policy's label tokens, and what is served."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from alora.closing import AsyncClosing
from alora.config.secrets import KEY, redacted
from alora.errors import AloraError, CheckFailed, ConfigError
from alora.http import Http, refusal, request_id, root
from alora.prompt.render import Prefix, Suffix
from alora.serving.servers import SESSION

MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"
_AT_ONCE = 32
_PROBE_SECONDS = 10  # of silence, after which a server that does not even list its models counts as dead
_SECONDS = 600  # of silence, while it computes
_ROUNDING = 0.02  # of label probabilities that an engine in half precision gives, summed
# Whether the server is still the one that was verified: asked with True as a request goes out, which may have waited
# long, and with False as its answer comes back.
Counts = Callable[[bool], bool]


class Forgotten(AloraError):
    """The server may be another one than was verified."""


class Completions(AsyncClosing):
    """What a server at ``url`` (``http://host:port``) answers, whoever it is; in one event loop.

    Args:
        at_once: requests under way at a time.
    """

    def __init__(self, url: str, at_once: int | None = None) -> None:
        self.url = root(url)
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ConfigError(f"{redacted(url)} holds a password; take it out, and export {KEY} for the key")
        self._http = Http()
        self._free = asyncio.Semaphore(at_once or _AT_ONCE)

    async def close(self) -> None:
        await self._http.close()

    async def models(self) -> dict[str, int | None]:
        """What the server serves, with the tokens that each takes, where it says so.

        Raises:
            ConfigError: it does not answer, or is not an OpenAI-compatible server.
        """
        status, text = await self._send(MODELS, None, _PROBE_SECONDS)
        if status == 404:
            raise ConfigError(
                f"{self.url} has no {MODELS}, so no vLLM runs there; a guard without it (serving.scorer=packed) is "
                "asked by alora.Guard"
            )
        return self._read(status, text, lambda models: {str(model["id"]): _longest(model) for model in models["data"]})

    async def ask_unverified(
        self,
        prefix: Prefix,
        suffix: Suffix,
        name: str,
        session: str | None = None,
        fields: Mapping[str, Any] | None = None,
        counts: Counts = lambda _: True,
    ) -> tuple[tuple[float, ...], int]:
        """Log-probabilities over the labels of the adapter ``name``, and how many of the prompt's tokens the server had
        in its cache (where it says so).

        Args:
            session: for a router on the way.
            fields: further ones of the request.
            counts: whether the answer does.

        Raises:
            CheckFailed: the server does not return the label tokens' log-probabilities.
            ConfigError: it does not answer, or refuses the prompt.
            Forgotten: ``counts`` denies.
        """
        labels = list(suffix.label_token_ids)
        answer = await self._send(
            COMPLETIONS,
            {
                "model": name,
                "prompt": [*prefix.token_ids, *suffix.token_ids],
                "max_tokens": 1,
                "temperature": 0,
                "repetition_penalty": 1,  # else the server takes it from the base's generation_config.json
                "logprobs": len(labels),
                "allowed_token_ids": labels,
                "return_tokens_as_token_ids": True,
                **(fields or {}),
            },
            session=session, counts=counts,
        )  # fmt: skip
        given = self._read(*answer, lambda completion: completion["choices"][0]["logprobs"])
        try:
            logprobs = tuple(float(given["top_logprobs"][0][f"token_id:{label}"]) for label in labels)
            if not abs(math.fsum(map(math.exp, logprobs)) - 1) < _ROUNDING:  # NaN, too
                raise ValueError("their probabilities do not add up to 1")
            return logprobs, min(max(0, self._read(*answer, _cached_tokens)), len(prefix.token_ids + suffix.token_ids))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            shown = self._http.hidden(str(given))
            raise CheckFailed(
                f"{self.url} answers with the log-probabilities {shown[:300]}, not with those of the label "
                f"tokens {labels}; start it with --logprobs-mode processed_logprobs, as alora serve does"
            ) from (error if shown == str(given) else None)

    def _read(self, status: int, text: str, pick: Callable[[Any], Any]) -> Any:
        """``pick`` applied to the answer's JSON.

        Raises:
            PromptRefused: the server refuses what was sent.
            ConfigError: it refuses for another reason, or what it says is nothing that ``pick`` can read.
        """
        if status != 200:
            raise refusal(self.url, status, text)
        try:
            return pick(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            shown = self._http.hidden(text)
            raise ConfigError(f"{self.url} is not an OpenAI-compatible server: it answered {shown[:100]!r}") from (
                error if shown == text else None
            )

    async def _send(
        self,
        path: str,
        body: dict[str, Any] | None,
        seconds: float | None = None,
        session: str | None = None,
        counts: Counts = lambda _: True,
    ) -> tuple[int, str]:
        headers = request_id() | ({} if session is None else {SESSION: session})
        async with self._free:
            if not counts(True):
                raise Forgotten
            answer = await self._http.send(self.url + path, body, _SECONDS if seconds is None else seconds, headers)
        if not counts(False):
            raise Forgotten
        return answer


def _longest(model: dict[str, Any]) -> int | None:
    tokens = model.get("max_model_len")
    if tokens is None or (type(tokens) is int and tokens > 0):
        return tokens
    raise ValueError(f"max_model_len is {tokens!r}")


def _cached_tokens(completion: Any) -> int:
    """The count in the usual fields, else 0: a missing count does not refuse a verdict."""
    for key in ("usage", "prompt_tokens_details", "cached_tokens"):
        completion = completion.get(key) if isinstance(completion, dict) else None
    return completion if type(completion) is int else 0
