"""Verdicts are the scorer's; and no fault of a reader lets a closed policy through."""

import asyncio
import threading

import pytest

from alora.data.conversation import parse_conversation
from alora.guard.core import GuardCore
from alora.guard.reader import GuardRefusal, Served
from alora.prefix.scorer import Scorer
from alora.verdict import make_verdict
from alora.wire.native import GuardRequest
from tests.integration.guard.conftest import FAULTS, MESSAGES, Faulty, Says


def ask(guard, **fields):
    return asyncio.run(guard.answer(GuardRequest(messages=MESSAGES, **fields)))


def test_verdicts_are_the_scorers(guard, base, bundles, renderer):
    prefix = renderer.prefix(parse_conversation({"messages": MESSAGES}, "test"))
    with Scorer(base, [bundle.weights for bundle in bundles]) as scorer:
        rows = scorer.label_logits(prefix, [bundle.suffix for bundle in bundles])
    answer = ask(guard)
    assert [verdict.policy for verdict in answer.verdicts] == ["advice", "refunds"]
    for verdict, bundle, logits_L in zip(answer.verdicts, bundles, rows, strict=True):
        wanted = make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, bundle.weights.digest)
        assert (verdict.label, verdict.probability) == (wanted.label, pytest.approx(wanted.probability, abs=1e-6))
        assert verdict.flagged == (wanted.label == bundle.policy.labels[0])
        assert verdict.status == "ok"
    assert answer.complete
    assert answer.action == ("block" if any(verdict.flagged for verdict in answer.verdicts) else "allow")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("on_failure", ["closed", "open"])
def test_a_policy_that_does_not_answer_is_flagged_unless_the_caller_says_open(guard_with, reader, fault, on_failure):
    reader = Faulty(reader, fault)
    answer = ask(guard_with(reader), deadline_ms=2000, on_failure=on_failure)
    first, second = answer.verdicts
    assert (first.status, second.status) == ("ok", "missed" if fault == "hangs" else "failed")
    assert second.flagged == (on_failure == "closed")
    assert second.probability is None
    assert not answer.complete
    if on_failure == "closed":
        assert answer.action == "block"
    assert reader.closed  # what still ran was cancelled


def test_stop_on_block_cancels_the_rest(guard_with):
    read = []
    guard = guard_with(Says(lambda item, _: read.append(item) or (50.0, -50.0)))
    answer = ask(guard, stop_on_block=True)
    assert [(verdict.status, verdict.flagged) for verdict in answer.verdicts] == [("ok", True), ("skipped", False)]
    assert (answer.action, len(read)) == ("block", 1)
    assert [verdict.status for verdict in ask(guard).verdicts] == ["ok", "ok"]


def test_policies_are_chosen_by_id_or_digest(guard, bundles):
    by_digest = Served.of(bundles[1]).name
    for name in ("refunds", by_digest):
        (verdict,) = ask(guard, policies=[name]).verdicts
        assert verdict.adapter == by_digest
    assert len(ask(guard, policies=["refunds", by_digest]).verdicts) == 1  # one policy, asked for twice
    with pytest.raises(GuardRefusal, match="parcels is not served; choose from advice, refunds"):
        ask(guard, policies=["parcels"])
    with pytest.raises(GuardRefusal, match="policies is empty"):
        ask(guard, policies=[])


def test_the_longest_prompt_that_the_engine_takes_is_taken(bundles, renderer):
    served, talk = [Served.of(bundle) for bundle in bundles], parse_conversation({"messages": MESSAGES}, "test")
    (prefix,) = GuardCore(served, renderer, reader=None).render(talk, served)
    whole = len(prefix.token_ids) + max(len(item.suffix.token_ids) for item in served)
    assert GuardCore(served, renderer, reader=None, longest=whole).render(talk, served) == [prefix]
    with pytest.raises(GuardRefusal, match=f"the prompt has {whole} tokens"):
        GuardCore(served, renderer, reader=None, longest=whole - 1).render(talk, served)


TEXT = "Hello! " * 30000
LONG = {
    "a text": [{"role": "user", "content": TEXT}],
    "many messages": [{"role": "user", "content": "y"}] * 20000 + [{"role": "user", "content": "x"}],
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_conversation_is_rendered_while_others_are_answered(guard, name):
    async def both():
        talk = LONG[name]
        long = asyncio.create_task(guard.answer(GuardRequest(messages=talk)))
        await asyncio.sleep(0)  # it has begun
        answer = await guard.answer(GuardRequest(messages=MESSAGES))
        assert not long.done()
        with pytest.raises(GuardRefusal, match="the policies were trained on") as caught:
            await long
        assert caught.value.status == 413
        return answer

    assert asyncio.run(both()).complete


def test_the_deadline_holds_while_a_long_conversation_is_rendered(guard, monkeypatch):
    rendered = threading.Event()

    def render(conversation, asked):
        rendered.wait(60)
        return []

    monkeypatch.setattr(guard, "render", render)
    talk = [{"role": "user", "content": "Hello! " * 30000}]

    async def asking():
        try:
            return await guard.answer(GuardRequest(messages=talk, deadline_ms=20))
        finally:
            rendered.set()

    answer = asyncio.run(asking())
    assert [verdict.status for verdict in answer.verdicts] == ["missed", "missed"]
    assert (answer.action, answer.usage.prefix_tokens) == ("block", 0)
