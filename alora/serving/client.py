"""A vLLM server elsewhere: proven to run the plugin and these very bundles before its answers are taken for verdicts.

``alora serve`` starts such a server; any stock vLLM with the plugin will do that serves the bundles under the same
names (``policy@digest``) and with ``--logprobs-mode processed_logprobs``.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from alora.bundle.golden import TOLERANCES, disagreement
from alora.config.secrets import KEY, redacted
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.serving.http import Http

if TYPE_CHECKING:
    from alora.bundle.light import LightBundle
    from alora.prompt.render import Prefix, Renderer, Suffix

_AT_ONCE = 32
_PROBE_SECONDS = 10  # of silence, until a server that does not even list its models is taken for dead
_SECONDS = 600  # of silence, while it computes
_ROUNDING = 0.02  # of label probabilities that an engine in half precision gives, summed


class RemoteEngine:
    """Label scores from an OpenAI-compatible vLLM server at ``url`` (``http://host:port``), in one event loop."""

    def __init__(self, url: str, at_once: int | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ConfigError(f"{redacted(url)} holds a password; take it out, and export {KEY} for the key")
        self._http = Http()
        self._free = asyncio.Semaphore(at_once or _AT_ONCE)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()

    async def models(self) -> dict[str, int | None]:
        """What the server serves, with the tokens that each takes, where it says so.

        Raises:
            ConfigError: it does not answer, or is no OpenAI-compatible server.
        """
        answer = await self._send("/v1/models", None, _PROBE_SECONDS)
        return self._read(
            *answer, lambda models: {str(model["id"]): model.get("max_model_len") for model in models["data"]}
        )

    async def prove(self, bundles: Sequence[LightBundle], renderer: Renderer) -> None:
        """Check that the server runs the plugin and that each adapter there gives its bundle's answers.

        An aLoRA prompt without its invocation is refused by the plugin, and by nothing else. Then one golden row of
        each bundle must come back, within the tolerance of bfloat16 (a server does not tell its dtype): another base,
        another adapter or an adapter that is left out does not pass.

        Raises:
            ConfigError: the server does not answer, or does not serve a bundle.
            CheckFailed: it runs without the plugin, its answers are not the bundle's, or a bundle stores none.
        """
        served = await self.models()
        missing = [bundle.served_name for bundle in bundles if bundle.served_name not in served]
        if missing:
            raise ConfigError(
                f"{self.url} serves {', '.join(sorted(served))[:500]}, not {', '.join(missing)}; start it with "
                "alora serve, or load each bundle under that name (POST /v1/load_lora_adapter)"
            )
        for bundle in bundles:
            await self._require_plugin(bundle)
            await self._require_answers(bundle, renderer)

    async def label_logits(
        self, prefix: Prefix, suffixes: Sequence[Suffix], names: Sequence[str]
    ) -> list[tuple[float, ...]]:
        """Log-probabilities over each policy's labels, all asked for at once.

        Raises:
            CheckFailed: the server does not tell the label tokens' log-probabilities.
            ConfigError: it does not answer, or refuses a prompt.
        """
        asked = [asyncio.ensure_future(self.ask(prefix, *pair)) for pair in zip(suffixes, names, strict=True)]
        try:
            return [logprobs for logprobs, _ in await asyncio.gather(*asked)]
        finally:  # the first that fails ends the others; vLLM aborts a request that nobody waits for
            for request in asked:
                request.cancel()

    async def ask(
        self, prefix: Prefix, suffix: Suffix, name: str, **fields: str | int
    ) -> tuple[tuple[float, ...], int]:
        """:meth:`label_logits` of one policy, and how many of the prompt's tokens the server had in its cache (where it
        says so); ``fields`` are further ones of the request."""
        labels = list(suffix.label_token_ids)
        answer = await self._send(
            "/v1/completions",
            {
                "model": name,
                "prompt": [*prefix.token_ids, *suffix.token_ids],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": len(labels),
                "allowed_token_ids": labels,
                "return_tokens_as_token_ids": True,
                **fields,
            },
        )
        found = self._read(*answer, lambda completion: completion["choices"][0]["logprobs"])
        try:
            logprobs = tuple(float(found["top_logprobs"][0][f"token_id:{label}"]) for label in labels)
            if not abs(math.fsum(map(math.exp, logprobs)) - 1) < _ROUNDING:  # NaN, too
                raise ValueError("their probabilities do not add up to 1")
            return logprobs, self._read(*answer, _cached_tokens)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise CheckFailed(
                f"{self.url} answers with the log-probabilities {str(found)[:300]}, not with those of the label "
                f"tokens {labels}; start it with --logprobs-mode processed_logprobs, as alora serve does"
            ) from error

    async def _require_plugin(self, bundle: LightBundle) -> None:
        """Ask for one token, which is no invocation."""
        name, invocation = bundle.served_name, bundle.suffix.invocation_ids
        stranger = next(token for token in count() if token not in invocation)
        if not bundle.manifest.activated:
            return
        status, answer = await self._send("/v1/completions", {"model": name, "prompt": [stranger], "max_tokens": 1})
        if status == 400 and "invocation tokens" in answer:
            return
        raise CheckFailed(
            f"{self.url} answered {status} to a prompt on which {name} cannot be activated, so alora's plugin is not "
            "active there, and it would run the adapter as a wrong plain LoRA; start it with alora serve, or see "
            "alora doctor on that machine"
        )

    async def _require_answers(self, bundle: LightBundle, renderer: Renderer) -> None:
        name, rows = bundle.served_name, bundle.golden[:1]
        if not rows:
            raise CheckFailed(
                f"{bundle.folder} stores no golden rows, so nobody can say whether {self.url} runs its adapter on its "
                "base; export it again with export.golden_rows=8"
            )
        (logits_L,) = await self.label_logits(renderer.prefix(rows[0].conversation), [bundle.suffix], [name])
        far = disagreement(rows, [logits_L])
        if not far <= TOLERANCES["bfloat16"]:
            raise CheckFailed(
                f"{self.url}: {name} answers a golden row of {bundle.folder} differently (by {far:.2g}, tolerance "
                f"{TOLERANCES['bfloat16']}); it runs on another base, or in another way: alora validate there"
            )

    def _read(self, status: int, text: str, pick: Callable[[Any], Any]) -> Any:
        """What ``pick`` takes from the answer's JSON.

        Raises:
            PromptRefused: the server refuses what was sent.
            ConfigError: it refuses for another reason, or what it says is nothing that ``pick`` can read.
        """
        if status != 200:
            refused = PromptRefused if status in (400, 413) else ConfigError
            raise refused(f"{self.url} answered {status}: {text[:300]!r}")
        try:
            return pick(json.loads(text))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ConfigError(f"{self.url} is no OpenAI-compatible server: it answered {text[:100]!r}") from error

    async def _send(self, path: str, body: dict[str, Any] | None, seconds: float | None = None) -> tuple[int, str]:
        async with self._free:
            return await self._http.send(self.url + path, body, _SECONDS if seconds is None else seconds)


def _cached_tokens(completion: dict[str, Any]) -> int:
    details = (completion.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
