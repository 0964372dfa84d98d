"""A vLLM server elsewhere: its answers count as verdicts once it is verified to run the plugin and these very bundles.

``alora serve`` starts such a server; so does any stock vLLM with the plugin that serves the bundles under the same
names (``policy@digest``) and with ``--logprobs-mode processed_logprobs``.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from alora.bundle.golden import TOLERANCES, disagreement
from alora.bundle.light import LightBundle
from alora.config.secrets import KEY, redacted
from alora.errors import AloraError, CheckFailed, ConfigError, PromptRefused
from alora.http import AsyncClosing, Full, Http, Unreachable, refusal, root
from alora.prompt.render import Prefix, Renderer, Suffix
from alora.serving.servers import SESSION
from alora.weights import ASKED_WEIGHTS

MODELS = "/v1/models"
_AT_ONCE = 32
_PROBE_SECONDS = 10  # of silence, after which a server that does not even list its models counts as dead
_SECONDS = 600  # of silence, while it computes
_ROUNDING = 0.02  # of label probabilities that an engine in half precision gives, summed
_SAME = 0.02  # of log-probabilities: how far two answers of one server to one prompt may lie apart, in half precision
_BEAT_S = 0.5  # between two looks at whether the event loop stands still
_Result = TypeVar("_Result")
Counts = Callable[[], bool]  # whether the server is still the one that was verified


class _Forgotten(AloraError):
    """The server may be another one than was verified."""


class RemoteEngine(AsyncClosing):
    """Label scores from an OpenAI-compatible vLLM server at ``url`` (``http://host:port``), in one event loop.

    Args:
        idle_s: seconds without an answer after which another server may have taken its place; a start takes longer.
    """

    def __init__(self, url: str, at_once: int | None = None, idle_s: float = 2.0) -> None:
        self.url = root(url)
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ConfigError(f"{redacted(url)} holds a password; take it out, and export {KEY} for the key")
        self._http = Http()
        self._free = asyncio.Semaphore(at_once or _AT_ONCE)
        self._verified: dict[str, str] = {}  # by its name, the digest of the weights that its requests ask for
        self._verifying: dict[str, asyncio.Task[None]] = {}  # by the same name
        self._listing: asyncio.Task[dict[str, int | None]] | None = None
        self._tasks = set[asyncio.Task[Any]]()
        self._idle_s, self._answered = idle_s, 0.0  # when it last gave an answer that counts, by the monotonic clock
        self._gave: dict[str, tuple[float, ...]] = {}  # the answer to each golden row, when it was verified last
        self._again = ""  # which name is verified again after a pause
        self._watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
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

    async def verify(self, bundles: Sequence[LightBundle], renderer: Renderer) -> None:
        """Check that the server runs the plugin and that each adapter there gives its bundle's answers: once, and again
        after it was away or failed, since another server may have taken its place. After ``idle_s`` one bundle is
        checked again, for the base that all share: which weights an adapter has each request says itself.

        An aLoRA prompt without its invocation is refused by the plugin, and by nothing else. Then one golden row of
        each bundle must come back, within the tolerance of bfloat16 (a server does not report its dtype): another base,
        another adapter or an adapter that is left out does not pass.

        Raises:
            ConfigError: the server does not answer, or does not serve a bundle.
            CheckFailed: it runs without the plugin, its answers are not the bundle's, or a bundle stores none.
        """
        verified, verifying = self._verified, self._verifying  # forget() has new ones take their place
        if self._watching is None:
            self._watching = self._start(self._watch_loop())
        if time.monotonic() - self._answered > self._idle_s and self._again not in verifying:
            known = [bundle for bundle in bundles if bundle.served_name in verified]
            known.sort(key=lambda bundle: not bundle.manifest.activated)  # a plain LoRA shows nothing of the plugin
            self._again = known[0].served_name if known else ""
            verified.pop(self._again, None)
        unknown = {bundle.served_name: bundle for bundle in bundles if bundle.served_name not in verified}
        for name, bundle in unknown.items():
            if name not in verifying:
                work = self._verify(bundle, [*unknown], renderer, verified)
                verifying[name] = self._start(work)
                verifying[name].add_done_callback(lambda _, name=name: verifying.pop(name, None))
        # Not ended with the request that asked first: its deadline may be shorter than this takes.
        awaited = {*unknown, self._again} & verifying.keys()
        await asyncio.gather(*(asyncio.shield(verifying[name]) for name in awaited))

    async def _verify(
        self, bundle: LightBundle, names: Sequence[str], renderer: Renderer, verified: dict[str, str]
    ) -> None:
        """One bundle of those that are verified together, which are served under ``names``."""
        listing = self._listing
        if listing is None or listing.done():
            listing = self._listing = self._start(self.models())
        served = await asyncio.shield(listing)
        if missing := [name for name in names if name not in served]:
            raise ConfigError(
                f"{self.url} serves {', '.join(sorted(served))[:500]}, not {', '.join(missing)}; start it with "
                "alora serve, or load each bundle under that name (POST /v1/load_lora_adapter)"
            )
        try:
            logits_L = await self._require(bundle, renderer)
        except PromptRefused as error:  # the bundle's, and no user's
            raise CheckFailed(f"{self.url} refuses a golden row of {bundle.folder}: {error}") from error
        before = self._gave.get(bundle.served_name, logits_L)
        self._gave[bundle.served_name] = logits_L
        differs = not max(abs(now - then) for now, then in zip(logits_L, before, strict=True)) <= _SAME
        if differs and bundle.served_name == self._again:
            # Within the bundle's tolerance, but not what it was: another base, perhaps. Every bundle is verified, and
            # none compared so closely, or an engine whose answers vary would be verified without end.
            self._again = ""
            self.forget()
            return
        verified[bundle.served_name], self._answered = bundle.served_weights, time.monotonic()

    async def verified(
        self, bundles: Sequence[LightBundle], renderer: Renderer, work: Callable[[], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        """What ``work`` finds, all of it from the server that :meth:`verify` has seen; it is done again where another
        one may have answered."""
        while True:
            await self.verify(bundles, renderer)
            with contextlib.suppress(_Forgotten):
                return await work()

    async def _watch_loop(self) -> None:
        """Doubt the server when the event loop stood still: answers that waited meanwhile are read late."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_BEAT_S)
            if time.monotonic() - before > _BEAT_S + self._idle_s:
                self._verified, self._answered = dict(self._verified), 0.0  # what is under way counts no more

    def _start(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the event loop alone would not keep it
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        return task

    def forget(self) -> None:
        """What was verified must be verified again."""
        self._verified, self._verifying, self._listing = {}, {}, None

    async def label_logits(
        self, prefix: Prefix, suffixes: Sequence[Suffix], names: Sequence[str]
    ) -> list[tuple[float, ...]]:
        """Log-probabilities over each policy's labels, all asked for at once.

        Raises:
            CheckFailed: the server does not return the label tokens' log-probabilities.
            ConfigError: it does not answer, or refuses a prompt.
        """
        asked = zip(suffixes, names, strict=True)
        return [logprobs for logprobs, _ in await together(self.ask(prefix, *pair) for pair in asked)]

    async def ask(
        self, prefix: Prefix, suffix: Suffix, name: str, session: str | None = None, **fields: str | int
    ) -> tuple[tuple[float, ...], int]:
        """:meth:`label_logits` of one policy, and how many of the prompt's tokens the server had in its cache (where it
        says so); ``session`` is for a router on the way, ``fields`` are further ones of the request."""
        verified = self._verified
        if name not in verified:
            raise _Forgotten
        weights = {"vllm_xargs": {ASKED_WEIGHTS: verified[name]}}

        def counts() -> bool:
            return self._verified is verified

        try:
            answer = await self.ask_unverified(prefix, suffix, name, session, weights | fields, counts)
            self._answered = time.monotonic()
            return answer
        except (PromptRefused, Full, _Forgotten):
            raise
        except AloraError as error:
            self._verified.pop(name, None)
            if isinstance(error, Unreachable):
                self.forget()
            raise

    async def ask_unverified(
        self,
        prefix: Prefix,
        suffix: Suffix,
        name: str,
        session: str | None = None,
        fields: Mapping[str, Any] | None = None,
        counts: Counts = lambda: True,
    ) -> tuple[tuple[float, ...], int]:
        """:meth:`ask`, of whatever server is there; ``counts`` is asked as the request goes out and comes back."""
        labels = list(suffix.label_token_ids)
        answer = await self._send(
            "/v1/completions",
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
            session=session,
            counts=counts,
        )
        given = self._read(*answer, lambda completion: completion["choices"][0]["logprobs"])
        try:
            logprobs = tuple(float(given["top_logprobs"][0][f"token_id:{label}"]) for label in labels)
            if not abs(math.fsum(map(math.exp, logprobs)) - 1) < _ROUNDING:  # NaN, too
                raise ValueError("their probabilities do not add up to 1")
            tokens = len(prefix.token_ids) + len(suffix.token_ids)
            return logprobs, min(max(0, self._read(*answer, _cached_tokens)), tokens)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise CheckFailed(
                f"{self.url} answers with the log-probabilities {str(given)[:300]}, not with those of the label "
                f"tokens {labels}; start it with --logprobs-mode processed_logprobs, as alora serve does"
            ) from error

    async def _require_plugin(self, bundle: LightBundle) -> None:
        """CheckFailed unless the server refuses a prompt without invocation tokens, as the plugin does."""
        name, invocation = bundle.served_name, bundle.suffix.invocation_ids
        stranger = next(token for token in count() if token not in invocation)
        if not bundle.manifest.activated:
            return
        status, answer = await self._send("/v1/completions", {"model": name, "prompt": [stranger], "max_tokens": 1})
        if status == 400 and "invocation tokens" in answer:
            return
        if status == 429 or status >= 500:
            raise refusal(self.url, status, answer)
        raise CheckFailed(
            f"{self.url} answered {status} to a prompt on which {name} cannot be activated, so alora's plugin is not "
            "active there, and it would run the adapter as a wrong plain LoRA; start it with alora serve, or see "
            "alora doctor on that machine"
        )

    async def _require(self, bundle: LightBundle, renderer: Renderer) -> tuple[float, ...]:
        """What the server answers to a golden row of the bundle, which is the bundle's answer."""
        await self._require_plugin(bundle)
        name, rows = bundle.served_name, bundle.golden[:1]
        if not rows:
            raise CheckFailed(
                f"{bundle.folder} stores no golden rows, so {self.url} cannot be checked to run its adapter on its "
                "base; export it again with export.golden_rows=8"
            )
        logits_L, _ = await self.ask_unverified(renderer.prefix(rows[0].conversation), bundle.suffix, name)
        far = disagreement(rows, [logits_L])
        if not far <= TOLERANCES["bfloat16"]:
            raise CheckFailed(
                f"{self.url}: {name} answers a golden row of {bundle.folder} differently (by {far:.2g}, tolerance "
                f"{TOLERANCES['bfloat16']}); it runs on another base, or in another way: alora validate there"
            )
        return logits_L

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
            raise ConfigError(f"{self.url} is not an OpenAI-compatible server: it answered {text[:100]!r}") from error

    async def _send(
        self,
        path: str,
        body: dict[str, Any] | None,
        seconds: float | None = None,
        session: str | None = None,
        counts: Counts = lambda: True,
    ) -> tuple[int, str]:
        headers = None if session is None else {SESSION: session}
        async with self._free:
            if not counts():
                raise _Forgotten
            answer = await self._http.send(self.url + path, body, _SECONDS if seconds is None else seconds, headers)
        if not counts():
            raise _Forgotten
        return answer


async def together(work: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of ``work``; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:  # vLLM aborts a request that nobody waits for
        for task in tasks:
            task.cancel()


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
