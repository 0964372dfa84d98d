"""A vLLM server elsewhere: its answers count as verdicts once it is verified to run the plugin and these very bundles.

``alora serve`` starts such a server; so does any stock vLLM with the plugin that serves the bundles under the same
names (``policy@digest``) and with ``--logprobs-mode processed_logprobs``.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from alora.bundle.golden import TOLERANCES, GoldenRow, disagreement
from alora.bundle.light import LightBundle
from alora.errors import AloraError, CheckFailed, ConfigError, PromptRefused
from alora.http import Full, Unreachable, refusal
from alora.prompt.render import Prefix, Renderer
from alora.serving.completions import COMPLETIONS, Completions, Forgotten
from alora.weights import ASKED_WEIGHTS

_SAME = 0.02  # of log-probabilities: how far two answers of one server to one prompt may lie apart, in half precision
_TRIES = 10  # to have all answers from one server
_LOST_S = 2.0  # after which an answer to the check after a pause may be lost, and another is made beside it
_BEAT_S = 0.5  # between two looks at whether the event loop stands still
_Result = TypeVar("_Result")


class RemoteEngine(Completions):
    """Label scores from a vLLM server at ``url`` (``http://host:port``), in one event loop.

    Args:
        renderer: of the golden rows, with the base's tokenizer.
        at_once: requests under way at a time.
        idle_s: seconds without an answer after which another server may have taken its place; a start takes longer.
    """

    def __init__(self, url: str, renderer: Renderer, at_once: int | None = None, idle_s: float = 2.0) -> None:
        super().__init__(url, at_once)
        self._renderer = renderer
        self._verified: dict[str, LightBundle] = {}  # by its name
        self._verifying: dict[str, asyncio.Task[None]] = {}  # by the same name
        self._checks: list[asyncio.Task[None]] = []  # after a pause; of several some answer may be lost
        self._late = 0.0  # when the last of them counts as lost, by the monotonic clock
        self._listing: asyncio.Task[dict[str, int | None]] | None = None
        self._tasks = set[asyncio.Task[Any]]()
        self._idle_s, self._answered = idle_s, 0.0  # when it last gave an answer that counts, by the monotonic clock
        self._checking: list[str] = []  # whose answer to a check is awaited
        self._gave: dict[str, tuple[float, ...]] = {}  # the answer to each bundle's first golden row
        self._watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await super().close()

    async def verify(self, bundles: Sequence[LightBundle]) -> None:
        """Check that the server runs the plugin and that each adapter there gives its bundle's answers: once, and again
        after it was away or failed, since another server may have taken its place. After ``idle_s`` one bundle is
        checked again, for the base that all share: which weights an adapter has each request says itself.

        A prompt without its aLoRA's invocation is refused by the plugin, and by nothing else. Then each bundle's golden
        rows must come back, within the tolerance of bfloat16 (a server does not report its dtype): another base,
        another adapter or an adapter that is left out does not pass. A base in 8 bits may.

        Raises:
            ConfigError: the server does not answer, or does not serve a bundle; or who answers is never sure.
            CheckFailed: it runs without the plugin, its answers are not the bundle's, or a bundle stores none.
        """
        if self._watching is None:
            self._watching = self._start(self._watch_loop())
        tries = 0
        while tries < _TRIES:
            if self._verified and self._paused():
                tries += await self._checked(bundles)
                continue
            unknown = {bundle.served_name: bundle for bundle in bundles if bundle.served_name not in self._verified}
            if not unknown:
                return
            names = [*unknown]
            work = {name: functools.partial(self._verify, bundle, names) for name, bundle in unknown.items()}
            await self._waited(work)
            tries += 1
        raise self._never_sure()

    def _paused(self) -> bool:
        """Whether another server may have taken this one's place since it last answered."""
        return time.monotonic() - self._answered > self._idle_s

    async def _waited(self, work: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Wait for each verification; those that nobody has begun are begun."""
        verifying = self._verifying  # forget() has a new one take its place
        for name, begin in work.items():
            if name not in verifying:
                verifying[name] = self._start(begin())
                verifying[name].add_done_callback(lambda _, name=name: verifying.pop(name, None))
        # Not ended with the request that asked first: its deadline may be shorter than this takes.
        await asyncio.gather(*(asyncio.shield(verifying[name]) for name in work))

    async def _checked(self, bundles: Sequence[LightBundle]) -> bool:
        """Wait for a check after a pause, and say whether one ended; another is begun beside those that are late, each
        time after twice as long, since a busy server is late, too."""
        checks, now = self._checks, time.monotonic()  # forget() has a new list take its place
        if not checks or now >= self._late:
            self._late = now + _LOST_S * 2 ** len(checks)
            checks.append(self._start(self._verify_again(bundles)))
            checks[-1].add_done_callback(checks.remove)
        done, _ = await asyncio.wait(
            checks, timeout=min(self._late - now, _LOST_S), return_when=asyncio.FIRST_COMPLETED
        )
        for check in done:
            check.result()
        return bool(done)

    async def _verify(self, bundle: LightBundle, names: Sequence[str]) -> None:
        """One bundle of those that are verified together, which are served under ``names``."""
        verified, listing = self._verified, self._listing
        if listing is None or listing.done():
            listing = self._listing = self._start(self.models())
        served = await asyncio.shield(listing)
        if missing := [name for name in names if name not in served]:
            there = self._http.hidden(", ".join(sorted(served)))[:500]
            raise ConfigError(
                f"{self.url} serves {there}, not {', '.join(missing)}; start it with "
                "alora serve, or load each bundle under that name (POST /v1/load_lora_adapter)"
            )
        try:
            logits_L = await self._require(bundle, bundle.golden)
        except PromptRefused as error:  # the bundle's, and no user's
            raise CheckFailed(f"{self.url} refuses a golden row of {bundle.folder}: {error}") from error
        self._gave[bundle.served_name] = logits_L
        if self._verified is verified:
            verified[bundle.served_name], self._answered = bundle, time.monotonic()

    async def _verify_again(self, bundles: Sequence[LightBundle]) -> None:
        """After a pause, one bundle of those that are verified, of ``bundles`` where there is one: first an aLoRA,
        whose answers show the plugin, last one that another check waits for. What fails by itself is left to who asks
        for it."""
        verified, names, begun = self._verified, {bundle.served_name for bundle in bundles}, time.monotonic()
        known = [
            (name in self._checking, not one.manifest.activated, name not in names, name)
            for name, one in verified.items()
        ]
        for bundle in [verified[name] for *_, name in sorted(known)]:
            name = bundle.served_name
            self._checking.append(name)
            try:
                await self._require_same(bundle)
            except Full:
                raise
            except Unreachable:
                if self._answered > begun or self._verified is not verified:  # this answer was lost, and others came
                    return
                self.forget()
                raise
            except CheckFailed:  # another server
                if self._verified is verified:
                    self.forget()
                return
            except AloraError:
                verified.pop(name, None)
                continue
            finally:
                self._checking.remove(name)
            if self._verified is verified:
                self._answered, self._late = time.monotonic(), 0.0
            return

    async def _require_same(self, bundle: LightBundle) -> None:
        """What it answered to the first golden row before; where an engine's answers vary, all rows must come back."""
        name = bundle.served_name
        logits_L = await self._require(bundle, bundle.golden[:1])
        if not max(abs(now - then) for now, then in zip(logits_L, self._gave[name], strict=True)) <= _SAME:
            self._gave[name] = await self._require(bundle, bundle.golden)

    async def _watch_loop(self) -> None:
        """Doubt the server when the event loop stood still: answers that waited meanwhile are read late."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_BEAT_S)
            if time.monotonic() - before > _BEAT_S + self._idle_s:
                # What is under way counts no more.
                self._verified, self._verifying, self._checks, self._answered = dict(self._verified), {}, [], 0.0

    def _start(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the event loop alone would not keep it
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        return task

    def forget(self) -> None:
        """What was verified must be verified again."""
        self._verified, self._verifying, self._checks, self._listing = {}, {}, [], None

    async def label_logits(self, prefix: Prefix, bundles: Sequence[LightBundle]) -> list[tuple[float, ...]]:
        """:meth:`ask` of every policy at once, the log-probabilities alone."""
        return [logprobs for logprobs, _ in await together(self.ask(prefix, bundle) for bundle in bundles)]

    async def ask(
        self, prefix: Prefix, bundle: LightBundle, session: str | None = None, **fields: str | int
    ) -> tuple[tuple[float, ...], int]:
        """Log-probabilities over a policy's labels from the server that :meth:`verify` has seen, and how many of the
        prompt's tokens it had in its cache (where it says so). It is asked again where another one may have answered.

        Args:
            session: for a router on the way.
            fields: further ones of the request.

        Raises:
            CheckFailed: as :meth:`verify`, or the server does not return the label tokens' log-probabilities.
            ConfigError: it does not answer, or refuses the prompt; or there is no end to who may have answered.
        """
        tries = 0
        while tries < _TRIES:
            await self.verify([bundle])
            verified = self._verified
            with contextlib.suppress(Forgotten):
                return await self._ask(prefix, bundle, session, fields)
            tries += self._verified is not verified  # else it waited for its turn through a pause
        raise self._never_sure()

    def _never_sure(self) -> ConfigError:
        return ConfigError(
            f"{self.url}: {_TRIES} times in a row another server may have answered, because it was away or this event "
            f"loop stood still for more than {self._idle_s:g} s; run what blocks it in a thread (asyncio.to_thread)"
        )

    async def _ask(
        self, prefix: Prefix, bundle: LightBundle, session: str | None, fields: Mapping[str, Any]
    ) -> tuple[tuple[float, ...], int]:
        verified, name = self._verified, bundle.served_name
        if name not in verified:
            raise Forgotten
        weights = {"vllm_xargs": {ASKED_WEIGHTS: verified[name].served_weights}}

        def counts(going_out: bool) -> bool:
            return self._verified is verified and not (going_out and self._paused())

        try:
            answer = await self.ask_unverified(prefix, bundle.suffix, name, session, {**weights, **fields}, counts)
            await self._require_still(verified, bundle)
            self._answered = time.monotonic()
            return answer
        except PromptRefused:
            await self._require_still(verified, bundle)
            raise
        except (Full, Forgotten):
            raise
        except AloraError as error:
            verified.pop(name, None)
            if isinstance(error, Unreachable) and self._verified is verified:
                self.forget()
            raise

    async def _require_still(self, verified: Mapping[str, LightBundle], bundle: LightBundle) -> None:
        """Forgotten unless the server is the one that was verified. After a pause it must show itself: a queue on the
        way may have kept a request until another server was there."""
        if self._paused():
            await self.verify([bundle])
        if self._verified is not verified:
            raise Forgotten

    async def _require_plugin(self, bundle: LightBundle) -> None:
        """CheckFailed unless the server refuses what the plugin alone does: a prompt without invocation tokens, and of
        plain LoRA other weights than any."""
        name, invocation = bundle.served_name, bundle.suffix.invocation_ids
        right = {
            "model": name,
            "prompt": [next(token for token in count() if token not in invocation)],
            "max_tokens": 1,
        }
        if bundle.manifest.activated:
            wrong, right, why = right, right | {"prompt": [*right["prompt"], *invocation]}, "invocation tokens"
        else:
            wrong, why = right | {"vllm_xargs": {ASKED_WEIGHTS: "none"}}, "not the digest of weights"
        status, answer = await self._send(COMPLETIONS, wrong)
        if status == 400 and why in answer:
            return
        # A front end in another language passes on the engine's refusal, but not the reason.
        if status == 500 and [(await self._send(COMPLETIONS, body))[0] for body in (right, wrong)] == [200, 500]:
            return
        if status not in (200, 400):
            raise refusal(self.url, status, answer)
        raise CheckFailed(
            f"{self.url} answered {status} to a request that {name} cannot answer, so alora's plugin is not active "
            "there: it would run an aLoRA as a wrong plain LoRA, and any weights under this name; start it with alora "
            "serve, or see alora doctor on that machine"
        )

    async def _require(self, bundle: LightBundle, rows: Sequence[GoldenRow]) -> tuple[float, ...]:
        """What the server answers to the first of ``rows``, the bundle's golden ones, which must all come back."""
        await self._require_plugin(bundle)
        name = bundle.served_name
        if not rows:
            raise CheckFailed(
                f"{bundle.folder} stores no golden rows, so {self.url} cannot be checked to run its adapter on its "
                "base; export it again with export.golden_rows=8"
            )
        prefixes = [self._renderer.prefix(row.conversation) for row in rows]
        answers = await together(self.ask_unverified(prefix, bundle.suffix, name) for prefix in prefixes)
        logits_RL = [logits_L for logits_L, _ in answers]
        far = disagreement(rows, logits_RL)
        if not far <= TOLERANCES["bfloat16"]:
            raise CheckFailed(
                f"{self.url}: {name} answers a golden row of {bundle.folder} differently (by {far:.2g}, tolerance "
                f"{TOLERANCES['bfloat16']}); it runs on another base, or in another way: alora validate there"
            )
        return logits_RL[0]


async def together(work: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of ``work``; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:  # vLLM aborts a request that nobody waits for
        for task in tasks:
            task.cancel()
