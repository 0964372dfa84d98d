"""What an answer of a guard means, and what a client asks no server for."""

import asyncio
import socket
from typing import Any

import pytest

from alora.client.guard import AsyncGuard, Guard, session_id
from alora.errors import ConfigError, PromptRefused
from alora.wire.native import GuardResponse
from tests.unit.test_transport import raw

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("messages", "fields"),
    [("hello", {}), (None, {}), ([["hello"]], {}), ([{"role": "user", "content": {1, 2}}], {}),
     (MESSAGES, {"polices": ["advice"]}), (MESSAGES, {"deadline_ms": 0}), (MESSAGES, {"stream": True})],
)  # fmt: skip
def test_what_is_no_request_is_refused_before_it_is_sent(messages, fields):
    with Guard("http://127.0.0.1:1") as guard, pytest.raises(PromptRefused):
        guard.check(messages, **fields)


def test_a_closed_client_says_so_and_no_guard_is_none():
    guard = Guard("http://127.0.0.1:1")
    guard.close()
    with pytest.raises(ConfigError):
        guard.policies()
    with pytest.raises(ConfigError):
        Guard([])


def answer(action: str, *flagged: bool, policies: int = 1) -> GuardResponse:
    verdicts: list[Any] = [
        {"policy": "advice", "status": "missed", "flagged": flag, "adapter": "advice@0123"} for flag in flagged
    ]
    usage = {"prefix_tokens": 1, "suffix_tokens": 1, "computed_tokens": 1, "policies": policies}
    whole = {"id": "1", "action": action, "complete": False, "verdicts": verdicts, "usage": usage}
    return GuardResponse.model_validate({**whole, "timing_ms": {"render": 0.1, "total": 1.0}})


@pytest.mark.parametrize(
    ("action", "flagged", "blocked"),
    [("allow", [False], False), ("allow", [], True), ("allow", [True], True), ("block", [False], True)],
)
def test_silence_is_not_consent(action, flagged, blocked):
    assert answer(action, *flagged).blocked == blocked


def test_policies_that_are_only_logged_give_no_verdict_and_block_nothing():
    assert not answer("allow", policies=0).blocked


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
