"""Verdicts for ``alora score`` from a guard, one request a conversation, without weights or tokenizer here."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, Self

from alora.bundle.light import Bundle
from alora.client.guard import Guard
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.messages import as_row
from alora.errors import AloraError, CheckFailed, ConfigError, DataError, PromptRefused
from alora.text import printable
from alora.transport import Full, Unreachable, named
from alora.verdict import Verdict, Verdicts
from alora.wire.native import GuardResponse, PolicyCard, PolicyVerdict

_AHEAD = 8  # conversations under way at a time
_WAITS_S = (1, 2, 4, 8, 16, 30)  # before a busy guard is asked again
_LONGEST_WAIT_S = 120  # that a guard may ask for
_PLAIN = [{"role": "user", "content": "Hello"}]


class GuardScorer:
    """Scores by the live policies of the guard at ``url``; where ``bundles`` are given, by theirs alone."""

    def __init__(self, url: str, bundles: Sequence[Bundle] = ()) -> None:
        self._guard, self._ended, self._url = Guard(url, timeout=600), Event(), named(url)
        self.asked = [policy for policy in self._guard.policies() if policy.action != "log"]
        if not self.asked:
            raise ConfigError(f"{self._url} reports no policy")
        if bundles:
            self.asked = [self._served(bundle) for bundle in bundles]

    def _served(self, bundle: Bundle) -> PolicyCard:
        """The policy that the guard serves of ``bundle``: the same weights, labels and threshold."""
        threshold, digest = bundle.calibration.threshold, bundle.manifest.adapter_digest
        wanted = bundle.served_name, digest, bundle.policy.labels, threshold
        for policy in self.asked:
            if (policy.adapter, policy.digest, policy.labels, policy.threshold) == wanted:
                return policy
        there = ", ".join(f"{policy.adapter} at the threshold {policy.threshold}" for policy in self.asked)
        raise ConfigError(
            f"{self._url} serves {printable(there[:500])}, not {bundle.served_name} at {threshold}; start it with "
            f"alora serve artifact={bundle.folder}, or leave artifact out"
        )

    def score(self, row: Conversation | LabelledConversation) -> Verdicts:
        """:meth:`alora.Battery.score` by the guard. PromptRefused where it refuses the conversation, or a policy fails
        on it; CheckFailed where one fails on any, or is another one by now."""
        conversation = row.conversation if isinstance(row, LabelledConversation) else row
        answer = self._check(as_row(conversation)["messages"])
        given = self._verdicts(answer)
        if failed := {verdict.policy: verdict for verdict in given if verdict.status != "ok"}:
            told = (f"{one.adapter} on the guard: {one.status}: {one.reason}" for one in failed.values())
            why, plain = printable("; ".join(told)), self._verdicts(self._check(_PLAIN))
            if any(verdict.policy in failed and verdict.status != "ok" for verdict in plain):
                raise CheckFailed(f"{why}; it fails on every conversation, so run the command again later")
            raise PromptRefused(why)
        verdicts = []
        for asked, one in zip(self.asked, given, strict=True):
            said = one.label or "", one.probability or 0.0, asked.threshold, asked.digest, one.probabilities or {}
            verdicts.append(Verdict(one.policy, *said))
        return Verdicts(conversation.id, tuple(verdicts), answer.usage.prefix_tokens)

    def _verdicts(self, answer: GuardResponse) -> list[PolicyVerdict]:
        """Those of the policies that were listed; CheckFailed where the guard serves another adapter or threshold by
        now."""
        known = {verdict.policy: verdict for verdict in answer.verdicts}
        given = [known[asked.policy] for asked in self.asked]
        for asked, verdict in zip(self.asked, given, strict=True):
            if verdict.adapter != asked.adapter or verdict.threshold not in (None, asked.threshold):
                raise CheckFailed(
                    f"{asked.adapter} at {asked.threshold} on the guard {self._url} is {printable(verdict.adapter)} at "
                    f"{verdict.threshold} by now; run the same command again when it serves it"
                )
        return given

    def _check(self, messages: Sequence[Mapping[str, Any]]) -> GuardResponse:
        """The guard's answer; while it is busy or away, it is asked again."""
        names = [policy.policy for policy in self.asked]
        for wait in _WAITS_S:
            try:
                return self._guard.check(messages, policies=names)
            except (Full, Unreachable) as error:
                if error.wait is None or self._ended.wait(min(max(wait, error.wait), _LONGEST_WAIT_S)):
                    raise
        return self._guard.check(messages, policies=names)

    def score_many(
        self, rows: Iterable[Conversation | LabelledConversation], *, errors: str = "raise"
    ) -> Iterator[Any]:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result(future: Future[Verdicts], errors: str) -> Verdicts | AloraError:
    try:
        return future.result()
    except (DataError, PromptRefused) as error:
        if errors == "raise":
            raise
        return error
