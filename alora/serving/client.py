"""A vLLM server elsewhere: proven to run the plugin and these very bundles before its answers are taken for verdicts.

``alora serve`` starts such a server; any stock vLLM with the plugin will do that serves the bundles under the same
names (``policy@digest``) and with ``--logprobs-mode processed_logprobs``.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import torch

from alora.bundle.golden import TOLERANCES, largest_difference, normalised
from alora.config.secrets import KEY, redacted
from alora.errors import CheckFailed, ConfigError
from alora.reading import read_stream
from alora.serving.engine import ServedAdapter
from alora.serving.parity import answers_of

if TYPE_CHECKING:
    from alora.bundle.read import Bundle
    from alora.prompt.render import Prefix, Renderer, Suffix

_Result = TypeVar("_Result")
_AT_ONCE = 32
_PROBE_SECONDS = 10  # of silence, until a server that does not even list its models is taken for dead
_SECONDS = 600  # of silence, while it computes
_ROUNDING = 0.02  # of label probabilities that an engine in half precision gives, summed
_WHOLE = 2  # times the silence: no answer takes longer, drop by drop or with headers without end


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A server that is trusted with the key and the text says nothing about another."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class RemoteEngine:
    """Label scores from an OpenAI-compatible vLLM server at ``url`` (``http://host:port``)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if "@" in urlsplit(url).netloc:
            raise ConfigError(f"engine={redacted(url)} holds a password; take it out, and export {KEY} for the key")

    def prove(self, bundles: Sequence[Bundle], renderer: Renderer) -> None:
        """Check that the server runs the plugin and that each adapter there gives its bundle's answers.

        An aLoRA prompt without its invocation is refused by the plugin, and by nothing else. Then one golden row of
        each bundle must come back, within the tolerance of bfloat16 (a server does not tell its dtype): another base,
        another adapter or an adapter that is left out does not pass.

        Raises:
            ConfigError: the server does not answer, or does not serve a bundle.
            CheckFailed: it runs without the plugin, its answers are not the bundle's, or a bundle stores none.
        """
        answer = self._send("/v1/models", None, _PROBE_SECONDS)
        served = self._read(*answer, lambda models: {str(model["id"]) for model in models["data"]})
        missing = [name for name in (ServedAdapter.of(bundle).name for bundle in bundles) if name not in served]
        if missing:
            raise ConfigError(
                f"{self.url} serves {', '.join(sorted(served))[:500]}, not {', '.join(missing)}; start it with "
                "alora serve, or load each bundle under that name (POST /v1/load_lora_adapter)"
            )
        for bundle in bundles:
            self._require_plugin(bundle)
            self._require_answers(bundle, renderer)

    def label_logits(
        self, prefix: Prefix, suffixes: Sequence[Suffix], names: Sequence[str | None]
    ) -> list[torch.Tensor]:
        """Log-probabilities ``[L]`` over each policy's labels, all asked for at once.

        Raises:
            CheckFailed: the server does not tell the label tokens' log-probabilities.
            ConfigError: it does not answer, or refuses a prompt.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda suffix, name: self._ask(prefix, suffix, str(name)), suffixes, names))

    def _ask(self, prefix: Prefix, suffix: Suffix, name: str) -> torch.Tensor:
        labels = list(suffix.label_token_ids)
        answer = self._send(
            "/v1/completions",
            {
                "model": name,
                "prompt": [*prefix.token_ids, *suffix.token_ids],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": len(labels),
                "allowed_token_ids": labels,
                "return_tokens_as_token_ids": True,
            },
        )
        found = self._read(*answer, lambda completion: completion["choices"][0]["logprobs"])
        try:
            answers_L = torch.tensor([float(found["top_logprobs"][0][f"token_id:{label}"]) for label in labels])
            if not abs(answers_L.exp().sum().item() - 1) < _ROUNDING:  # NaN, too
                raise ValueError("their probabilities do not add up to 1")
            return answers_L
        except (LookupError, TypeError, ValueError) as error:
            raise CheckFailed(
                f"{self.url} answers with the log-probabilities {str(found)[:300]}, not with those of the label "
                f"tokens {labels}; start it with --logprobs-mode processed_logprobs, as alora serve does"
            ) from error

    def _require_plugin(self, bundle: Bundle) -> None:
        """Ask for one token, which is no invocation."""
        name, invocation = ServedAdapter.of(bundle).name, bundle.suffix.invocation_ids
        stranger = next(token for token in count() if token not in invocation)
        if not bundle.manifest.activated:
            return
        status, answer = self._send("/v1/completions", {"model": name, "prompt": [stranger], "max_tokens": 1})
        if status == 400 and "invocation tokens" in answer:
            return
        raise CheckFailed(
            f"{self.url} answered {status} to a prompt on which {name} cannot be activated, so alora's plugin is not "
            "active there, and it would run the adapter as a wrong plain LoRA; start it with alora serve, or see "
            "alora doctor on that machine"
        )

    def _require_answers(self, bundle: Bundle, renderer: Renderer) -> None:
        name, rows = ServedAdapter.of(bundle).name, bundle.golden[:1]
        if not rows:
            raise CheckFailed(
                f"{bundle.folder} stores no golden rows, so nobody can say whether {self.url} runs its adapter on its "
                "base; export it again with export.golden_rows=8"
            )
        found = answers_of(rows, bundle.suffix, renderer, self.label_logits, name)
        far = largest_difference(normalised(rows), found)
        if not far <= TOLERANCES["bfloat16"]:
            raise CheckFailed(
                f"{self.url}: {name} answers a golden row of {bundle.folder} differently (by {far:.2g}, tolerance "
                f"{TOLERANCES['bfloat16']}); it runs on another base, or in another way: alora validate there"
            )

    def _read(self, status: int, text: str, pick: Callable[[Any], Any]) -> Any:
        """What ``pick`` takes from the answer's JSON.

        Raises:
            ConfigError: the server refuses, or what it says is nothing that ``pick`` can read.
        """
        if status != 200:
            raise ConfigError(f"{self.url} answered {status}: {text[:300]!r}")
        try:
            return pick(json.loads(text))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ConfigError(f"{self.url} is no OpenAI-compatible server: it answered {text[:100]!r}") from error

    def _send(self, path: str, body: dict[str, Any] | None, seconds: float = _SECONDS) -> tuple[int, str]:
        """Status and body of one request; ``seconds`` of silence end it, and :data:`_WHOLE` times as many in all."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            if not key.isascii() or not key.isprintable():
                raise ConfigError(f"${KEY} holds a character that no HTTP header carries; export it again")
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            status, content, location = _within(seconds * _WHOLE, partial(_answer, request, seconds))
        except (OSError, http.client.HTTPException, ValueError) as error:  # silence, a cut answer, no HTTP at all
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ConfigError(
                f"{self.url} does not answer ({reason}); is the server up? alora serve starts one"
            ) from error
        if 300 <= status < 400:
            raise ConfigError(
                f"{self.url} answered {status} and sends on to {redacted(str(location))}, where neither key nor text "
                "follow; give the right address as engine="
            )
        return status, content.decode(errors="replace")


def _answer(request: urllib.request.Request, seconds: float) -> tuple[int, bytes, str | None]:
    """Status, body and the place to which it sends on."""
    with _open(request, seconds) as answer:
        content = read_stream(answer)
        if answer.length:  # bytes that were announced and did not come
            raise http.client.IncompleteRead(content, answer.length)
        return answer.status, content, answer.headers.get("Location")


def _open(request: urllib.request.Request, seconds: float) -> Any:
    try:
        return _OPENER.open(request, timeout=seconds)
    except urllib.error.HTTPError as error:
        return error  # an answer too, with a status and a body


def _within(seconds: float, ask: Callable[[], _Result]) -> _Result:
    """What ``ask`` returns or raises; TimeoutError when that takes longer.

    http.client bounds the silence between two bytes alone, so the wait is in another thread, which is left behind.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(ask())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError as error:
        if done.done():  # of its own, after silence
            raise
        raise TimeoutError(f"no whole answer after {seconds:g} s") from error
