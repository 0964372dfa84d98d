"""Verdicts for ``alora score`` from a guard, one request a conversation, without weights or tokenizer here."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, Self

from alora.bundle.light import LightBundle
from alora.client.guard import Guard, GuardAnswer, GuardPolicy, GuardVerdict
from alora.config.secrets import KEY, key_in
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.messages import as_row
from alora.errors import AloraError, CheckFailed, ConfigError, DataError, PromptRefused
from alora.reading import printable
from alora.transport import Full, Unreachable, hidden, named
from alora.verdict import Verdict, Verdicts

_AHEAD = 8  # conversations under way at a time
_WAITS_S = (1, 2, 4, 8, 16, 30)  # before a busy guard is asked again
_LONGEST_WAIT_S = 120  # that a guard may ask for
_PLAIN = [{"role": "user", "content": "Hello"}]


class GuardScorer:
    """Scores by the live policies of the guard at ``url``; where ``bundles`` are given, by theirs alone.

    Raises:
        ConfigError: it does not answer, or does not serve what is asked for.
    """

    def __init__(self, url: str, bundles: Sequence[LightBundle] = ()) -> None:
        self._guard, self._ended = Guard(url, timeout=600), Event()
        self._url, self._key = named(url), key_in(KEY)
        self.asked = [policy for policy in self._guard.policies() if policy.stage == "live"]
        if not self.asked:
            raise ConfigError(f"{self._url} serves no live policy")
        if bundles:
            self.asked = [self._served(bundle) for bundle in bundles]

    def _served(self, bundle: LightBundle) -> GuardPolicy:
        """The policy that the guard serves of ``bundle``: the same weights, labels and threshold."""
        for policy in self.asked:
            served = (policy.adapter, policy.digest, policy.labels, policy.threshold)
            if served == (bundle.served_name, bundle.manifest.adapter_digest, bundle.policy.labels,
                          bundle.calibration.threshold):  # fmt: skip
                return policy
        there = ", ".join(f"{policy.adapter} at the threshold {policy.threshold}" for policy in self.asked)
        raise ConfigError(
            f"{self._url} serves {printable(hidden(there, self._key)[:500])}, not {bundle.served_name} at "
            f"{bundle.calibration.threshold}; start it with alora serve artifact={bundle.folder}, or leave artifact out"
        )

    def score(self, row: Conversation | LabelledConversation) -> Verdicts:
        """:meth:`alora.Battery.score` by the guard.

        Raises:
            PromptRefused: the guard refuses the conversation, or a policy fails on it.
            CheckFailed: a policy fails on any, or is another one by now.
        """
        conversation = row.conversation if isinstance(row, LabelledConversation) else row
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
