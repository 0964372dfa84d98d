"""What an answer of a guard means, and what a client asks no server for."""

from typing import Any

import pytest

from alora.client.guard import Guard
from alora.errors import ConfigError, PromptRefused
from alora.wire.native import GuardResponse

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
