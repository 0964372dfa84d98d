"""One request: render once, score all policies together, and apply ``on_failure`` to those that do not answer."""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from typing import Any

from alora.config.schema import DataSettings
from alora.data.conversation import Conversation, parse_conversation
from alora.errors import AdapterError, DataError
from alora.guard import metrics
from alora.guard.drift import Drift
from alora.guard.reader import EngineDead, GuardRefusal, Overloaded, Reader, Reading, Served, highest_of
from alora.prompt.render import Prefix, Renderer
from alora.prompt.tokens import LONG
from alora.verdict import make_verdict
from alora.wire.native import GuardRequest, GuardResponse, PolicyVerdict, Status, Timing, Usage

_logger = logging.getLogger("alora.guard")


class GuardCore:
    """The policies that are served, how their conversations are rendered, and what computes.

    Args:
        served: at least one; all on one base with one rendering of the prefix.
        longest: tokens of a prompt that the engine takes, or None.
    """

    def __init__(
        self, served: Sequence[Served], renderer: Renderer, reader: Reader, longest: int | None = None
    ) -> None:
        self._renderer, self._reader, self._longest = renderer, reader, longest
        self._held: Counter[str] = Counter()  # uses of adapters that must stay loaded
        self._tasks: set[asyncio.Task[None]] = set()
        self._drift: dict[tuple[str, str], Drift] = {}  # by version
        self.served: tuple[Served, ...] = ()
        self.shadows: tuple[Served, ...] = ()
        self.serve(served)

    def serve(self, served: Sequence[Served]) -> None:
        """Answer with these from the next request on. The rest is unloaded when its last reading ends."""
        before, lost = {item.name for item in (*self.served, *self.shadows)}, self.served
        self.served = tuple(item for item in served if item.stage == "live")
        self.shadows = tuple(item for item in served if item.stage == "shadow")
        self._drift = {
            one.version: self._drift.get(one.version) or Drift(one.calibration.histogram) for one in self.served
        }
        for item in lost:
            if item.version not in self._drift:  # else an alert on what is not served any more goes on
                metrics.PSI.labels(item.policy.id).set(math.nan)
        for name in before - {item.name for item in served}:
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
            Overloaded: it takes no further requests.
        """
        async for item in self.judge(request):
            if isinstance(item, GuardResponse):
                return item
        raise AssertionError("judge() ends with its response")

    async def judge(self, request: GuardRequest) -> AsyncGenerator[PolicyVerdict | GuardResponse, None]:
        """Each verdict as it arrives, then the whole answer; raises like :meth:`answer`, before the first of them."""
        started = time.monotonic()
        asked = self.choose(request.policies)
        end = None if request.deadline_ms is None else started + request.deadline_ms / 1000
        with self.holding(*(item.name for item in asked)):  # what is replaced while this renders stays loaded
            prefixes = await self._rendered(request, asked)
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
            action="block" if any(verdict.flagged for verdict in given.values()) else "allow",
            complete=all(verdict.status == "ok" for verdict in given.values()),
            verdicts=[given[index] for index in range(len(asked))],
            usage=Usage(
                prefix_tokens=_tokens(prefixes),
                suffix_tokens=sum(len(item.suffix.token_ids) for item in asked) * len(prefixes),
                computed_tokens=computed,
                policies=len(asked),
            ),
            timing_ms=Timing(render=round((rendered - started) * 1000, 3), total=round(total * 1000, 3)),
        )
        self._count(asked, response)
        if self.shadows:
            self._start(self._shadow(prefixes, request, response))
        yield response

    async def _rendered(self, request: GuardRequest, asked: Sequence[Served]) -> list[Prefix]:
        """The rendered prefixes, or none once the deadline passes. Long requests are rendered in a thread, so that they
        do not block the event loop.
        """

        def render() -> list[Prefix]:
            return self.render(_conversation(request.messages, asked[0].manifest.reasoning), asked)

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
                verdict = _verdict(item, reading, request)
                whole = _tokens(prefixes) + len(item.suffix.token_ids) * len(prefixes)
                yield reading.index, verdict, whole - reading.cached_tokens if reading.error is None else 0
                if request.stop_on_block and verdict.flagged:
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
                _logger.exception("reading %d policies failed", len(asked) - len(given))
                why = f"the engine failed; on_failure {request.on_failure}"
        finally:
            await readings.aclose()
        for index, item in enumerate(asked):
            if index not in given:
                yield index, _unanswered(item, rest, why, request), 0

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

    async def _shadow(self, prefixes: Sequence[Prefix], request: GuardRequest, response: GuardResponse) -> None:
        """Ask the shadows of the policies that answered, after the live ones, and count where they disagree."""
        live = {verdict.policy: verdict for verdict in response.verdicts if verdict.status == "ok"}
        asked = [item for item in self.shadows if item.policy.id in live]
        async for reading in self._read(prefixes if asked else (), asked, request):
            shadow = _verdict(asked[reading.index], reading, request)
            before = live[shadow.policy]
            if shadow.status == "ok" and shadow.label != before.label:
                metrics.SHADOW.labels(shadow.policy, before.label, shadow.label).inc()

    def psi(self, item: Served) -> float | None:
        """Population stability index of an adapter's recent probabilities against validation rows; None if unknown."""
        drift = self._drift.get(item.version)
        return None if drift is None else drift.psi

    def _count(self, asked: Sequence[Served], response: GuardResponse) -> None:
        metrics.count(response)
        for item, verdict in zip(asked, response.verdicts, strict=True):
            if verdict.probability is not None and (drift := self._drift.get(item.version)) is not None:
                drift.add(verdict.probability)
                metrics.PSI.labels(verdict.policy).set(math.nan if drift.psi is None else drift.psi)

    def _unused(self, name: str) -> bool:
        return not self._held[name] and name not in {item.name for item in (*self.served, *self.shadows)}

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
            _logger.error("after an answer: %s: %s", type(error).__name__, error)

    def choose(self, names: Sequence[str] | None) -> list[Served]:
        """Those of the served policies that ``names`` ask for, by id, ``id@digest`` or ``tag:NAME``; GuardRefusal for
        another."""
        if names is None:
            return list(self.served)
        known = defaultdict[str, list[Served]](list)
        for item in self.served:
            for name in (item.policy.id, item.name, *(f"tag:{tag}" for tag in item.tags)):
                known[name].append(item)
        if unknown := [name for name in names if name not in known]:
            have = ", ".join(name for name in known if "@" not in name)[:500]
            raise GuardRefusal(f"policies: {', '.join(unknown[:5])[:200]} is not served; choose from {have}", 404)
        if not names:
            raise GuardRefusal("policies is empty; name at least one, or leave it out for all")
        return list({item.name: item for name in names for item in known[name]}.values())

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


def _tokens(prefixes: Sequence[Prefix]) -> int:
    return sum(len(prefix.token_ids) for prefix in prefixes)


def _conversation(messages: Sequence[object], reasoning: str) -> Conversation:
    try:
        return parse_conversation({"messages": list(messages)}, "request", DataSettings(reasoning=reasoning))
    except DataError as error:
        raise GuardRefusal("\n".join(map(str, error.findings)) or str(error)) from error


def _verdict(item: Served, reading: Reading, request: GuardRequest) -> PolicyVerdict:
    if reading.error is not None:
        return _unanswered(item, "failed", f"{reading.error}; on_failure {request.on_failure}", request)
    try:
        verdict = make_verdict(item.policy, reading.logits, item.calibration, item.digest)
    except AdapterError as error:  # not finite, or not one value per label
        return _unanswered(item, "failed", f"{error}; on_failure {request.on_failure}", request)
    return PolicyVerdict(
        policy=item.policy.id,
        status="ok",
        flagged=verdict.violated,
        label=verdict.label,
        probability=verdict.probability,
        threshold=verdict.threshold,
        probabilities=verdict.probabilities,
        adapter=item.name,
    )


def _unanswered(item: Served, status: Status, why: str, request: GuardRequest) -> PolicyVerdict:
    closed = request.on_failure == "closed" and status != "skipped"
    return PolicyVerdict(policy=item.policy.id, status=status, flagged=closed, adapter=item.name, reason=why)
