"""One request: render once, score all policies together, and apply ``on_failure`` to those that do not answer."""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from typing import Any

from alora.config.schema import DataSettings
from alora.data.conversation import Conversation, parse_conversation
from alora.errors import DataError
from alora.guard import exported_metrics as metrics
from alora.guard import verdicts
from alora.guard.admission import ON_CPU, Admission
from alora.guard.drift import Drifts
from alora.guard.reader import EngineDead, GuardRefusal, Overloaded, Reader, Reading, Served, highest_of
from alora.prompt.render import Prefix, Renderer
from alora.prompt.tokens import LONG
from alora.wire.native import GuardRequest, GuardResponse, PolicyVerdict, Status, Timing, Usage


class GuardCore:
    """The policies that are served, how their conversations are rendered, and what computes.

    Args:
        served: at least one; all on one base with one rendering of the prefix.
        longest: tokens of a prompt that the engine takes, or None.
        admission: bounds what is under way.
    """

    def __init__(
        self,
        served: Sequence[Served],
        renderer: Renderer,
        reader: Reader,
        longest: int | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._renderer, self._reader, self._longest = renderer, reader, longest
        self.admission = admission or Admission(*ON_CPU)
        self._held: Counter[str] = Counter()  # uses of adapters that must stay loaded
        self._tasks: set[asyncio.Task[None]] = set()
        self.drift = Drifts()
        self.served: tuple[Served, ...] = ()
        self.logged: tuple[Served, ...] = ()
        self._names = frozenset[str]()  # of all that is read
        self.serve(served)

    @property
    def known(self) -> tuple[Served, ...]:
        """All that is read."""
        return *self.served, *self.logged

    def serve(self, served: Sequence[Served]) -> None:
        """Answer with these from the next request on. The rest is unloaded when its last reading ends."""
        before = self.known
        self.served = tuple(item for item in served if item.action != "log")
        self.logged = tuple(item for item in served if item.action == "log")
        metrics.note_served(before, served)
        self.drift.keep(self.served)
        names, self._names = self._names, frozenset(item.name for item in served)
        for name in names - self._names:
            self._unload_if_unused(name)

    def require_running(self) -> None:
        """EngineDead where no verdict can be computed, as far as that is known without asking."""
        self._reader.require_running()

    def trouble(self) -> str | None:
        """What whoever runs the engine should look at, although it reads."""
        return self._reader.trouble()

    async def answer(self, request: GuardRequest) -> GuardResponse:
        """The whole answer.

        Raises:
            GuardRefusal: an unknown policy, a malformed or too long conversation.
            EngineDead: the engine is gone.
            Overloaded: it takes no further requests, or too much is under way.
        """
        async for item in self.judge(request):
            if isinstance(item, GuardResponse):
                return item
        raise AssertionError("judge() ends with its response")

    async def judge(self, request: GuardRequest) -> AsyncGenerator[PolicyVerdict | GuardResponse, None]:
        """Each verdict as it arrives, then the whole answer; raises like :meth:`answer`, before the first of them."""
        started = time.monotonic()
        chosen = self.choose(request.policies)
        asked, logged = ([item for item in chosen if (item.action == "log") is log] for log in (False, True))
        end = None if request.deadline_ms is None else started + request.deadline_ms / 1000
        # What is replaced while this renders stays loaded.
        with self.admission.place() as take, self.holding(*(item.name for item in chosen)):
            prefixes = await self._rendered(request, chosen)
            take(_tokens(prefixes, asked))
            rendered = time.monotonic()
            given: dict[int, PolicyVerdict] = {}
            computed = 0
            async with contextlib.aclosing(self._arriving(prefixes, asked, request, end)) as arriving:
                async for index, verdict, tokens in arriving:
                    given[index] = verdict
                    computed += tokens
                    yield verdict
        total = time.monotonic() - started
        response = GuardResponse(
            id=request.answer_id,
            action="block" if any(verdict.blocks for verdict in given.values()) else "allow",
            complete=all(verdict.status == "ok" for verdict in given.values()),
            verdicts=[given[index] for index in range(len(asked))],
            usage=Usage(
                prefix_tokens=_tokens(prefixes),
                suffix_tokens=_tokens(prefixes, asked) - _tokens(prefixes),
                computed_tokens=computed,
                policies=len(asked),
            ),
            timing_ms=Timing(render=round((rendered - started) * 1000, 3), total=round(total * 1000, 3)),
        )
        metrics.count(response)
        metrics.count_unlike(asked, request.messages)
        self.drift.add(asked, response.verdicts)
        verdicts.write(request, response.verdicts)
        if logged:
            self._start(self._log(prefixes, logged, request, response))
        yield response

    async def _rendered(self, request: GuardRequest, asked: Sequence[Served]) -> list[Prefix]:
        """The rendered prefixes, or none once the deadline passes. Long requests are rendered in a thread, so that they
        do not block the event loop.
        """

        def render() -> list[Prefix]:
            return self.render(_conversation(request.messages, asked[0].manifest.reading), asked)

        if len(repr(request.messages)) <= LONG:
            return render()
        try:
            seconds = None if request.deadline_ms is None else request.deadline_ms / 1000
            async with asyncio.timeout(seconds):
                return await asyncio.to_thread(render)
        except TimeoutError:
            return []

    async def _arriving(
        self, prefixes: Sequence[Prefix], asked: Sequence[Served], request: GuardRequest, end: float | None
    ) -> AsyncGenerator[tuple[int, PolicyVerdict, int], None]:
        """Yield each policy's index, verdict and number of computed tokens, until all have answered or ``end``; then
        yield the policies that did not answer."""
        given: set[int] = set()
        rest: Status = "failed"
        why = "the engine gave no answer"
        late, timer = not prefixes, asyncio.timeout(None)
        readings = self._read(prefixes, asked, request)
        try:
            while len(given) < len(asked):
                late = late or (end is not None and time.monotonic() >= end)
                if late:
                    raise TimeoutError
                # At the deadline the pending read is cancelled, and with it what runs in the engine.
                async with asyncio.timeout(None if end is None else end - time.monotonic()) as timer:
                    reading = await anext(readings)
                if reading.index in given:
                    continue
                given.add(reading.index)
                item = asked[reading.index]
                verdict = verdicts.verdict_of(item, reading, request)
                whole = _tokens(prefixes, [item])
                yield reading.index, verdict, whole - reading.cached_tokens if reading.error is None else 0
                if request.stop_on_block and verdict.blocks:
                    rest, why = "skipped", f"{item.policy.id} is flagged, and stop_on_block is set"
                    break
        except StopAsyncIteration:
            pass
        except (EngineDead, Overloaded):
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and (late or timer.expired()):  # not by the clock: a timer may be early
                rest, why = "missed", f"deadline of {request.deadline_ms:g} ms; on_failure {request.on_failure}"
            else:  # a reader has timeouts of its own, too
                verdicts.logger.exception("reading %d policies failed", len(asked) - len(given))
                why = f"the engine failed; on_failure {request.on_failure}"
        finally:
            await readings.aclose()
        for index, item in enumerate(asked):
            if index not in given:
                yield index, verdicts.unanswered(item, rest, why, request), 0

    async def _read(
        self, prefixes: Sequence[Prefix], asked: Sequence[Served], request: GuardRequest
    ) -> AsyncGenerator[Reading, None]:
        """Yield each policy's reading once all its windows have been read; its adapter stays loaded until the end."""
        read: dict[int, dict[int, Reading]] = defaultdict(dict)
        with self.holding(*(item.name for item in asked)):
            for window, prefix in enumerate(prefixes):
                readings = self._reader.read(prefix, asked, request)
                try:
                    async for reading in readings:
                        read[reading.index][window] = reading
                        if len(read[reading.index]) == len(prefixes):
                            yield highest_of(list(read[reading.index].values()))
                finally:
                    await readings.aclose()

    @contextlib.contextmanager
    def holding(self, *names: str) -> Iterator[None]:
        """Keep adapters loaded, whatever is served meanwhile."""
        self._held.update(names)
        try:
            yield
        finally:
            self._held.subtract(names)
            for name in names:
                self._unload_if_unused(name)

    async def _log(
        self, prefixes: Sequence[Prefix], logged: list[Served], request: GuardRequest, response: GuardResponse
    ) -> None:
        """Read what is only logged, after the answer and while half of the places are free; count its verdicts, and
        where one differs from the answer's of the same policy."""
        answered = {verdict.policy: verdict.label for verdict in response.verdicts if verdict.status == "ok"}
        with contextlib.suppress(EngineDead, Overloaded), self.admission.place(share=0.5) as take:
            take(_tokens(prefixes, logged))
            async for reading in self._read(prefixes, logged, request):
                verdict = verdicts.verdict_of(logged[reading.index], reading, request)
                metrics.count_verdict(verdict, "log")
                verdicts.write(request, [verdict], "log")
                label = answered.get(verdict.policy, verdict.label)
                if verdict.status == "ok" and verdict.label != label:
                    metrics.DISAGREEMENT.labels(verdict.policy, label, verdict.label).inc()

    def _unused(self, name: str) -> bool:
        return not self._held[name] and name not in self._names

    def _unload_if_unused(self, name: str) -> None:
        async def unload() -> None:
            if self._unused(name):  # still: it may have been put back before this began
                del self._held[name]
                await self._reader.unload(name)

        if self._unused(name):
            self._start(unload())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` after this, and keep it from the garbage collector until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            verdicts.logger.error("after an answer: %s: %s", type(error).__name__, error)

    def choose(self, names: Sequence[str] | None) -> list[Served]:
        """Those of the served policies that ``names`` ask for, by id, ``id@digest`` or ``tag:NAME``; GuardRefusal for
        another."""
        if names is None:
            return list(self.known)
        known = defaultdict[str, list[Served]](list)
        for item in self.known:
            for name in (item.policy.id, item.name, *(f"tag:{tag}" for tag in item.tags)):
                known[name].append(item)
        if unknown := [name for name in names if name not in known]:
            have = ", ".join(name for name in known if "@" not in name)[:500]
            raise GuardRefusal(f"policies: {', '.join(unknown[:5])[:200]} is not served; choose from {have}", 404)
        if not names:
            raise GuardRefusal("policies is empty; name at least one, or leave it out for all")
        return list({item.version: item for name in names for item in known[name]}.values())

    def render(self, conversation: Conversation, asked: Sequence[Served]) -> list[Prefix]:
        """The conversation's tokens, by window; GuardRefusal for what does not fit whole: a guard must not judge half
        of it."""
        prefixes = self._renderer.windows(conversation)
        for cut in (prefix.truncation for prefix in prefixes if prefix.truncation):
            tokens, most = cut.tokens_before, self._renderer.settings.max_prefix_tokens
            found = f"the conversation has {tokens} tokens, the policies were trained on {most}"
            raise GuardRefusal(f"{found}; send less of it, or train with prompt.truncation=windows", 413)
        whole = max(len(prefix.token_ids) for prefix in prefixes) + max(len(item.suffix.token_ids) for item in asked)
        if self._longest is not None and whole > self._longest:
            raise GuardRefusal(f"the prompt has {whole} tokens, the engine takes {self._longest}", 413)
        return prefixes


def _tokens(prefixes: Sequence[Prefix], asked: Sequence[Served] = ()) -> int:
    """Of the conversation once, and of each policy behind it."""
    suffixes = sum(len(item.suffix.token_ids) for item in asked)
    return sum(len(prefix.token_ids) + suffixes for prefix in prefixes)


def _conversation(messages: Sequence[object], reading: DataSettings) -> Conversation:
    try:
        return parse_conversation({"messages": list(messages)}, "request", reading)
    except DataError as error:
        raise GuardRefusal("\n".join(map(str, error.findings)) or str(error)) from error
