"""Verdicts from a vLLM server, with the bundles' manifests and the base's tokenizer here, and no torch."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, Literal, overload

from alora.asking import Artifact, Base, Messages, Policies, conversation_in, open_artifact, require_known
from alora.bundle.light import read_bundle
from alora.closing import AsyncClosing, Closing, Waiting
from alora.config.secrets import KEY, key_in
from alora.data.messages import as_row
from alora.errors import AloraError, CheckFailed, ConfigError, DataError, PromptRefused, RenderError
from alora.http import Full, Unreachable, hidden, named
from alora.reading import printable
from alora.serving.client import RemoteEngine
from alora.serving.guard import Guard, GuardAnswer, GuardVerdict
from alora.verdict import Verdict, Verdicts, highest

_AHEAD = 8  # conversations under way at a time
_WAITS_S = (1, 2, 4, 8, 16, 30)  # before a busy guard is asked again
_LONGEST_WAIT_S = 120  # that a guard may ask for
_PLAIN = [{"role": "user", "content": "Hello"}]


class AsyncClient(AsyncClosing):
    """Policies on a server that ``alora serve`` started: an asynchronous context manager, or :meth:`close` it.

    Before the first verdict the server is verified: it runs the plugin, and gives each bundle's golden answer.
    ``policies`` are their ids.

    Args:
        url: ``http://HOST:PORT``; its key is read from ``$VLLM_API_KEY``.
        artifact: the bundles that it serves, as :func:`alora.load` takes them.
        base: where the base's tokenizer lies, as in :func:`alora.load`.
        policies: of a battery, the ids to ask; empty: all.

    Raises:
        AloraError: with what was found, where, and what to do.
    """

    def __init__(self, url: str, artifact: Artifact, *, base: Base = None, policies: Sequence[str] = ()) -> None:
        from alora.base.describe import describe_prompts  # transformers, which a guard's client goes without

        bundles, settings = open_artifact(artifact, base, policies, read_bundle)
        described = describe_prompts(settings, bundles[0].manifest.base.fingerprint)
        for bundle in bundles:
            bundle.check_base(described)
        renderer = bundles[0].renderer(described)
        self._engine, self._policies = RemoteEngine(url, renderer), Policies(bundles, renderer)
        self.policies = self._policies.ids

    async def score(self, messages: Messages) -> Verdicts:
        """:meth:`alora.Battery.score` by the server; all policies are asked at once.

        Raises:
            DataError, RenderError: it is not a conversation.
            ConfigError: the server does not answer, refuses the prompt, or does not serve a bundle.
            CheckFailed: it runs without the plugin, or its answers are not the bundles'.
        """
        return await self._score(messages, "")

    async def score_many(self, rows: Iterable[Messages], *, errors: str = "raise") -> AsyncGenerator[Any]:
        """:meth:`score` of each row, in order, several under way at a time; ``errors`` as for
        :meth:`alora.Battery.score_many`, of a prompt that cannot be made or that the server refuses."""
        require_known(errors)
        under_way: deque[asyncio.Task[Verdicts | AloraError]] = deque()
        if errors == "return":
            await self.verify()  # what fails here is not the fault of a row
        try:
            for number, row in enumerate(rows, 1):
                under_way.append(asyncio.ensure_future(self.score_row(row, number, errors)))
                if len(under_way) == _AHEAD:
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def score_row(self, row: Messages, number: int, errors: str) -> Verdicts | AloraError:
        """One row of :meth:`score_many`, which is the ``number``-th."""
        try:
            return await self._score(row, f"row {number}")
        except (DataError, RenderError, PromptRefused) as error:
            if errors == "raise":
                raise
            return error

    async def _score(self, messages: Messages, where: str) -> Verdicts:
        name, asked = self._policies.questions(messages, where)
        await self.verify()
        logits_WPL = [await self._engine.label_logits(window.prefix, self._policies.bundles) for window in asked]
        return self._policies.verdicts(name, asked, [highest(logits_WL) for logits_WL in zip(*logits_WPL, strict=True)])

    async def verify(self) -> None:
        """Show that the server is the right one; raises as :meth:`score` does."""
        await self._engine.verify(self._policies.bundles)

    async def close(self) -> None:
        await self._engine.close()


class Client(Closing):
    """:class:`AsyncClient` without ``await``, for any number of threads."""

    def __init__(self, url: str, artifact: Artifact, *, base: Base = None, policies: Sequence[str] = ()) -> None:
        self._wait = Waiting(lambda: AsyncClient(url, artifact, base=base, policies=policies))
        self.policies = self._wait.resource.policies

    def score(self, messages: Messages) -> Verdicts:
        """:meth:`AsyncClient.score`, waited for."""
        return self._wait(lambda client: client.score(messages))

    @overload
    def score_many(self, rows: Iterable[Messages]) -> Iterator[Verdicts]: ...
    @overload
    def score_many(self, rows: Iterable[Messages], *, errors: Literal["return"]) -> Iterator[Verdicts | AloraError]: ...
    def score_many(self, rows: Iterable[Messages], *, errors: str = "raise") -> Iterator[Any]:
        """:meth:`AsyncClient.score_many`, waited for row by row."""
        require_known(errors)
        if errors == "return":
            self._wait(lambda client: client.verify())
        under_way: deque[Future[Verdicts | AloraError]] = deque()
        process = os.getpid()

        def first() -> Verdicts | AloraError:
            if os.getpid() != process:  # where nobody would answer
                raise ConfigError("these rows were begun in another process; begin them in this one")
            return self._wait.result(under_way.popleft())

        try:
            for number, row in enumerate(rows, 1):  # in the caller's thread: rows may wait, or ask this client
                under_way.append(self._wait.begin(lambda client, row=row, n=number: client.score_row(row, n, errors)))
                if len(under_way) == _AHEAD:
                    yield first()
            while under_way:
                yield first()
        finally:
            for future in under_way:
                future.cancel()

    def close(self) -> None:
        self._wait.close()


class GuardClient(Closing):
    """Verdicts of the live policies of a guard, one request a conversation, without bundles or tokenizer here."""

    def __init__(self, url: str) -> None:
        self._guard, self._ended = Guard(url, timeout=600), Event()
        self._url, self._key = named(url), key_in(KEY)
        self.asked = [policy for policy in self._guard.policies() if policy.stage == "live"]
        if not self.asked:
            raise ConfigError(f"{self._url} serves no live policy")

    def score(self, messages: Messages) -> Verdicts:
        """:meth:`alora.Battery.score` by the guard.

        Raises:
            PromptRefused: the guard refuses the conversation, or a policy fails on it.
            CheckFailed: a policy fails on any, or is another one by now.
        """
        conversation = conversation_in(messages, "the conversation")
        answers, usage = self._answers(as_row(conversation)["messages"])
        if failed := [verdict for verdict in answers.values() if verdict.status != "ok"]:
            plain, _ = self._answers(_PLAIN)
            why = "; ".join(f"{failure.adapter} on the guard: {failure.status}: {failure.reason}" for failure in failed)
            why = printable(hidden(why, self._key))
            if any(plain[failure.policy].status != "ok" for failure in failed):
                raise CheckFailed(f"{why}; it fails on every conversation, so run the same command again later")
            raise PromptRefused(why)
        verdicts = []
        for asked in self.asked:
            verdict = answers[asked.policy]
            if verdict.label not in asked.labels or verdict.threshold != asked.threshold:
                label = hidden(str(verdict.label), self._key)[:200]
                listed = f"{asked.adapter} on the guard {self._url} was listed with {list(asked.labels)}"
                raise CheckFailed(
                    f"{hidden(listed, self._key)} at {asked.threshold}, and answers {label!r} at {verdict.threshold}; "
                    "run it again"
                )
            probability, given = float(verdict.probability or 0), dict(verdict.probabilities or {})
            verdicts.append(
                Verdict(asked.policy, str(verdict.label), probability, asked.threshold, asked.digest, given)
            )
        return Verdicts(conversation.id, tuple(verdicts), usage.get("prefix_tokens", 0))

    def _answers(self, messages: Sequence[Mapping[str, Any]]) -> tuple[dict[str, GuardVerdict], Mapping[str, int]]:
        """Each policy's verdict, and the guard's usage."""
        answer = self._check(messages)
        verdicts = {verdict.policy: verdict for verdict in answer.verdicts}
        for asked in self.asked:
            if (adapter := verdicts[asked.policy].adapter) != asked.adapter:
                why = f"{asked.adapter} on the guard is {hidden(adapter, self._key)} by now"
                raise CheckFailed(f"{why}; run the same command again when it serves it")
        return {asked.policy: verdicts[asked.policy] for asked in self.asked}, answer.usage

    def _check(self, messages: Sequence[Mapping[str, Any]]) -> GuardAnswer:
        """The guard's answer; while it is busy or away, it is asked again."""
        names = [policy.policy for policy in self.asked]
        for wait in _WAITS_S:
            try:
                return self._guard.check(messages, policies=names)
            except (Full, Unreachable) as error:
                if error.wait is None or self._ended.wait(min(max(wait, error.wait), _LONGEST_WAIT_S)):
                    raise
        return self._guard.check(messages, policies=names)

    def score_many(self, rows: Iterable[Messages], *, errors: str = "raise") -> Iterator[Any]:
        """As :meth:`alora.Battery.score_many`, several under way at a time."""
        self._ended.clear()
        with ThreadPoolExecutor(_AHEAD) as pool:
            under_way: deque[Future[Verdicts]] = deque()
            try:
                for row in rows:
                    under_way.append(pool.submit(self.score, row))
                    if len(under_way) == _AHEAD:
                        yield _result(under_way.popleft(), errors)
                while under_way:
                    yield _result(under_way.popleft(), errors)
            finally:
                self._ended.set()  # nobody waits for the rest

    def close(self) -> None:
        self._guard.close()


def _result(future: Future[Verdicts], errors: str) -> Verdicts | AloraError:
    try:
        return future.result()
    except (DataError, PromptRefused) as error:
        if errors == "raise":
            raise
        return error
