"""A vLLM server elsewhere: proven to run the plugin and these very bundles before its answers are taken for verdicts.

``alora serve`` starts such a server; any stock vLLM with the plugin will do that serves the bundles under the same
names (``policy@digest``) and with ``--logprobs-mode processed_logprobs``.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from alora.bundle.golden import largest_difference
from alora.errors import CheckFailed, ConfigError
from alora.serving.engine import ServedAdapter
from alora.serving.parity import TOLERANCES, answers_of, normalised

if TYPE_CHECKING:
    from alora.bundle.read import Bundle
    from alora.render import Prefix, Renderer, Suffix

KEY = "VLLM_API_KEY"  # the variable that vLLM's server reads its own key from
_AT_ONCE = 32
_SECONDS = 600


class RemoteEngine:
    """Label scores from an OpenAI-compatible vLLM server at ``url`` (``http://host:port``)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")

    def prove(self, bundles: Sequence[Bundle], renderer: Renderer) -> None:
        """Check that the server runs the plugin and that each adapter there gives its bundle's answers.

        An aLoRA prompt without its invocation is refused by the plugin, and by nothing else. Then one golden row of
        each bundle must come back, within the tolerance of bfloat16 (a server does not tell its dtype): another base,
        another adapter or an adapter that is left out does not pass.

        Raises:
            ConfigError: the server does not answer, or does not serve a bundle.
            CheckFailed: it runs without the plugin, its answers are not the bundle's, or a bundle stores none.
        """
        served = {model["id"] for model in self._get("/v1/models")["data"]}
        missing = [name for name in (ServedAdapter.of(bundle).name for bundle in bundles) if name not in served]
        if missing:
            raise ConfigError(
                f"{self.url} serves {', '.join(sorted(served))}, not {', '.join(missing)}; start it with alora serve, "
                "or load each bundle under that name (POST /v1/load_lora_adapter)"
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
        answer = self._post(
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
        found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        try:
            return torch.tensor([found[f"token_id:{label}"] for label in labels])
        except KeyError as error:
            raise CheckFailed(
                f"{self.url} answers with the log-probabilities of {', '.join(found)}, not of the label tokens; start "
                "it with --logprobs-mode processed_logprobs, as alora serve does"
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

    def _get(self, path: str) -> Any:
        return self._answer(*self._send(path, None))

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(*self._send(path, body))

    def _answer(self, status: int, text: str) -> Any:
        if status != 200:
            raise ConfigError(f"{self.url} answered {status}: {text[:500]}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{self.url} is no OpenAI-compatible server: it answered {text[:100]!r}") from error

    def _send(self, path: str, body: dict[str, Any] | None) -> tuple[int, str]:
        """Status and body of one request."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            raise ConfigError(
                f"{self.url} does not answer ({error}); is the server up? alora serve starts one"
            ) from error
