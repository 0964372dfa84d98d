"""What an answer of a guard may say, and what it means."""

import asyncio
import socket
from typing import Any

import pytest

from alora.client.failover import session_id
from alora.client.guard import AsyncGuard, Guard, GuardAnswer, GuardVerdict
from alora.config.secrets import KEY
from alora.errors import AloraError, ConfigError, PromptRefused
from tests.unit.test_transport import LONG, raw, server, with_causes

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("url", [[URL, None], [URL, 8000], None, 8000, b"http://127.0.0.1:1"])
def test_a_url_that_is_no_text_is_refused(url):
    with pytest.raises(ConfigError, match=r"URL is .*; give http://HOST:PORT"):
        Guard(url)


@pytest.mark.parametrize("timeout", ["x", None, 0, -1.0, float("nan"), float("inf")])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    with pytest.raises(ConfigError, match=r"timeout is .*; give seconds"):
        Guard(URL, timeout)


def verdict(probability: float, flagged: bool, **more: Any) -> GuardVerdict:
    facts: dict[str, Any] = {
        "label": "violation" if flagged else "ok",
        "threshold": 0.5,
        "probabilities": {"violation": probability, "ok": 1 - probability},
    }
    return GuardVerdict("advice", "ok", flagged, "advice@0123", probability=probability, **facts | more)


def answer(*verdicts: GuardVerdict, action: str = "allow") -> GuardAnswer:
    complete = all(verdict.status == "ok" for verdict in verdicts)
    return GuardAnswer("1", action, complete, verdicts, {}, {})


def unanswered(status: str, flagged: bool = False) -> GuardVerdict:
    return GuardVerdict("tone", status, flagged, "tone@0123")


def test_silence_is_not_consent():
    assert not answer(verdict(0.1, False)).blocked
    assert answer().blocked
    assert answer(verdict(0.9, True)).blocked
    assert answer(verdict(0.1, False), action="block").blocked


@pytest.mark.parametrize("status", ["missed", "failed", "skipped"])
def test_who_did_not_answer_is_let_through_by_an_open_guard_alone(status):
    silent = answer(verdict(0.1, False), unanswered(status))
    with pytest.raises(ValueError, match=f"tone did not answer \\({status}\\), and is not flagged"):
        silent.require({})
    assert silent.require({"on_failure": "open"}) is silent
    assert answer(verdict(0.1, False), unanswered(status, flagged=True)).require({}).blocked


def test_who_is_skipped_behind_a_flagged_policy_need_not_be_flagged():
    assert answer(verdict(0.9, True), unanswered("skipped")).require({}).flagged == ["advice"]


def test_a_guard_that_hangs_holds_no_connection_of_another(monkeypatch):
    monkeypatch.setattr("alora.client.guard._CONNECTIONS", 1)
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"

    async def checked(well, hung):
        guard = AsyncGuard([well, hung])
        talks = [[{"role": "user", "content": str(number)}] for number in range(30)]
        own = {guard._servers.order(session_id(talk))[0]: talk for talk in talks}
        waiting = asyncio.create_task(guard.check(own[hung]))
        try:
            async with asyncio.timeout(30):  # half the silence after which it is given up
                await asyncio.sleep(0.5)
                with pytest.raises(PromptRefused):
                    await guard.check(own[well])
        finally:
            waiting.cancel()
            await guard.close()

    with raw(refused) as well, socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(checked(well, f"http://127.0.0.1:{listening.getsockname()[1]}"))


VERDICT = {
    "policy": "toy", "status": "ok", "flagged": False, "adapter": "toy@012345678901", "label": "ok",
    "probability": 0.25, "threshold": 0.5, "probabilities": {"ok": 0.75, "bad": 0.25}, "reason": None,
}  # fmt: skip
WHOLE = {"id": "x", "action": "allow", "complete": True, "verdicts": [VERDICT], "usage": {}, "timing_ms": {}}


@pytest.mark.parametrize("key", ["toy", "ok", "x", "none", "verdicts"])
def test_an_answer_that_is_used_is_as_it_came(key, monkeypatch):
    monkeypatch.setenv(KEY, key)
    with server(content=WHOLE) as (url, _), Guard(url, timeout=5) as guard:
        (verdict,) = guard.check([{"role": "user", "content": "Hello"}]).verdicts
    assert (verdict.policy, verdict.label, verdict.probabilities) == ("toy", "ok", {"ok": 0.75, "bad": 0.25})


@pytest.mark.parametrize(
    "said",
    [{LONG: 1}, WHOLE | {"verdicts": [VERDICT | {"status": LONG}]}],
    ids=["no guard", "another verdict"],
)
def test_what_does_not_fit_is_shown_without_the_key(said, monkeypatch):
    monkeypatch.setenv(KEY, LONG)
    with server(content=said) as (url, _), Guard(url, timeout=5) as guard, pytest.raises(AloraError) as caught:
        guard.check([{"role": "user", "content": "Hello"}])
    assert not [error for error in with_causes(caught.value) if LONG[:6] in str(error)]
