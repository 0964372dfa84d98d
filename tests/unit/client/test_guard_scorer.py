"""A log scored by a guard that is busy, or whose policies fail: what costs a row, and what ends the job."""

from types import SimpleNamespace
from typing import Any

import pytest

from alora.client.guard import Guard
from alora.client.guard_scorer import _WAITS_S, GuardScorer
from alora.data.conversation import Conversation, Message
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.transport import Full, Unreachable, refusal
from alora.wire.native import GuardResponse, PolicyCard, PolicyVerdict, Timing, Usage
from tests.unit.test_transport import raw

POLICY = PolicyCard(policy="advice", title="Advice", rule="No advice.", adapter="advice@" + "ab" * 8, digest="ab" * 8,
                    action="block", tags=(), labels=("violation", "ok"), threshold=0.5)  # fmt: skip
OK = PolicyVerdict(policy="advice", status="ok", flagged=False, adapter=POLICY.adapter, label="ok", probability=0.25,
                   threshold=0.5, probabilities={"violation": 0.25, "ok": 0.75})  # fmt: skip
FAILED = PolicyVerdict(policy="advice", status="failed", flagged=True, adapter=POLICY.adapter, reason="it overflowed")
USAGE = Usage(prefix_tokens=9, suffix_tokens=3, computed_tokens=12, policies=1)


@pytest.fixture
def guard(monkeypatch):
    """A client whose guard gives ``answers`` in turn, then a failure for texts with "bad"; how long it waited."""
    answers, waits = [], []

    def check(self, messages, **fields):
        found = answers.pop(0) if answers else FAILED if "bad" in messages[0]["content"] else OK
        if isinstance(found, Exception):
            raise found
        action = "block" if found.flagged else "allow"
        return GuardResponse(id="x", action=action, complete=found.status == "ok", verdicts=[found], usage=USAGE,
                             timing_ms=Timing(render=0.1, total=1.0))  # fmt: skip

    monkeypatch.setattr(Guard, "policies", lambda self: (POLICY,))
    monkeypatch.setattr(Guard, "check", check)
    client = GuardScorer("http://127.0.0.1:1")
    monkeypatch.setattr(client._ended, "wait", lambda seconds: waits.append(seconds))
    return client, answers, waits


def talk(text: str) -> Conversation:
    return Conversation("c", (Message("user", text),))


def bundle(**other: Any) -> Any:
    """What :class:`GuardScorer` reads of the bundle that the guard serves; ``other`` differs."""
    facts = {"served_name": POLICY.adapter, "digest": POLICY.digest, "labels": POLICY.labels, "threshold": 0.5} | other
    return SimpleNamespace(
        folder="bundles/advice",
        served_name=facts["served_name"],
        manifest=SimpleNamespace(adapter_digest=facts["digest"]),
        policy=SimpleNamespace(labels=facts["labels"]),
        calibration=SimpleNamespace(threshold=facts["threshold"]),
    )


def test_a_bundle_that_is_given_is_the_one_that_the_guard_serves(guard):
    scorer = GuardScorer("http://127.0.0.1:1", [bundle()])
    assert scorer.score(talk("one")).verdicts[0].adapter_digest == POLICY.digest


@pytest.mark.parametrize(
    "other",
    [
        {"served_name": "advice@000000000000"},
        {"digest": "cd" * 8},
        {"labels": ("ok", "violation")},
        {"threshold": 0.25},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_bundle_than_the_guard_serves_is_refused(other, guard):
    with pytest.raises(ConfigError, match="start it with alora serve artifact=bundles/advice"):
        GuardScorer("http://127.0.0.1:1", [bundle(), bundle(**other)])


def test_a_row_on_which_a_policy_fails_costs_itself_alone(guard):
    client, _, _ = guard
    rows = [talk(text) for text in ("one", "bad", "two")]
    one, bad, two = client.score_many(rows, errors="return")
    assert isinstance(bad, PromptRefused)
    assert str(bad) == f"{POLICY.adapter} on the guard: failed: it overflowed"
    assert [verdicts.verdicts[0].probability for verdicts in (one, two)] == [0.25, 0.25]


@pytest.mark.parametrize("other", [{"adapter": "advice@000000000000"}, {"threshold": 0.75}])
def test_another_adapter_or_threshold_than_was_listed_ends_the_job(other, guard):
    client, answers, _ = guard
    answers[:] = [OK.model_copy(update=other)]
    with pytest.raises(CheckFailed):
        client.score(talk("one"))


def test_a_policy_that_fails_on_every_conversation_ends_the_job(guard):
    client, answers, _ = guard
    answers[:] = [OK, FAILED, FAILED]
    client.score(talk("one"))
    with pytest.raises(CheckFailed, match="failed: it overflowed; it fails on every conversation"):
        client.score(talk("two"))


@pytest.mark.parametrize(("status", "kind"), [(429, Full), (503, Unreachable)])
def test_a_busy_guard_is_asked_again_a_few_times(status, kind, guard):
    client, answers, waits = guard
    answers[:] = [refusal("http://g", status, "busy", wish) for wish in (None, "7", "soon", "1e9")]
    assert client.score(talk("one")).verdicts[0].probability == 0.25
    assert waits == [1, 7, 4, 120]
    answers[:] = [refusal("http://g", status, "busy") for _ in range(len(_WAITS_S) + 1)]
    with pytest.raises(kind, match=f"answered {status}: busy"):
        client.score(talk("one"))
    assert waits[4:] == list(_WAITS_S)
    assert not answers


def test_a_guard_that_does_not_answer_is_not_waited_for(guard):
    client, answers, waits = guard
    answers[:] = [Unreachable("does not answer")]
    with pytest.raises(Unreachable):
        client.score(talk("one"))
    assert waits == []


def test_the_wait_is_that_of_the_answer():
    body = b'{"error": {"message": "full"}}'
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nConnection: close\r\n\r\n"
    with raw(head + body) as url, Guard(url) as guard:
        with pytest.raises(ConfigError, match="full") as caught:
            guard.check([{"role": "user", "content": "one"}])
        assert isinstance(caught.value, Full)
        assert caught.value.wait == 7
