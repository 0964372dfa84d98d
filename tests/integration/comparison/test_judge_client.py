"""The judge against a real server that fails in every way that servers do."""

import json

import pytest

from alora.comparison.judge_client import JudgeClient
from alora.comparison.judge_prompt import Answer
from alora.config.schema import JudgeSettings
from alora.conversation import Conversation, Message
from alora.errors import ConfigError
from alora.policy import Policy
from tests.unit.comparison.endpoint import completion, endpoint, says

POLICY = Policy("refunds", "No refunds", "Nobody promises a refund.")
TALK = Conversation("c", (Message("user", "May I have my money back?"),))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def ask(behaviour, **settings):
    """One question: the answer, what it took, and what the server saw."""
    with endpoint(behaviour) as server:
        given = JudgeSettings(
            **{"url": server.url, "model": "m", "api_key_env": "JUDGE_KEY", "timeout": 5.0} | settings
        )
        with JudgeClient(given, pause=0.001) as client:
            return client.ask(POLICY, TALK), client.usage, server


def test_a_good_answer(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret-key")
    answer, usage, server = ask(lambda number, body: says("violation", 80))
    assert answer == Answer(0, 0.8)
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (1, 100, 10)
    (body,), (headers,) = server.bodies, server.headers
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 200)
    assert "May I have my money back?" in body["messages"][1]["content"]
    assert headers["authorization"] == "Bearer secret-key"


@pytest.mark.parametrize(
    "bad",
    [
        500,
        503,
        429,
        (429, {"Retry-After": "0"}, {"error": {"message": "slow down"}}),
        (503, {"Retry-After": "soon"}, b"<html>busy</html>"),
        b'{"choices": [{"mess',
        b"<html>gateway</html>",
        b"",
        {"choices": []},
        {"choices": [{"index": 0, "message": None}]},
        {"error": "no choices at all"},
        [1, 2],
    ],
)
def test_a_failure_is_tried_again_and_counted(bad):
    answer, usage, server = ask(lambda number, body: bad if number < 2 else says("ok"))
    assert answer == Answer(1, 0.9)
    assert (usage.requests, usage.failed_requests) == (3, 2)
    assert len(server.bodies) == 3


def test_a_server_that_never_recovers_costs_its_retries_and_gives_no_answer():
    answer, usage, _ = ask(lambda number, body: 500, retries=3)
    assert answer is None
    assert (usage.requests, usage.failed_requests) == (4, 4)


def test_a_slow_answer_is_given_up():
    answer, usage, _ = ask(lambda number, body: 1.0 if number == 0 else says("ok"), timeout=0.2)
    assert answer == Answer(1, 0.9)
    assert usage.failed_requests == 1


@pytest.mark.parametrize("text", ["violation", "I refuse.", json.dumps({"label": "maybe"}), "", None])
def test_words_that_are_no_label_are_asked_for_once_more_and_then_left(text):
    answer, usage, _ = ask(lambda number, body: completion(text))
    assert answer is None
    assert (usage.requests, usage.unreadable_answers, usage.failed_requests) == (2, 2, 0)
    assert usage.input_tokens == 200  # what could not be read was paid for
    answer, usage, _ = ask(lambda number, body: completion(text) if number == 0 else says("ok"))
    assert answer == Answer(1, 0.9)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "JUDGE_KEY is missing"),
        (403, "JUDGE_KEY is missing"),
        (404, "ends with its version"),
        (400, "refuses the request with HTTP 400"),
        (422, "refuses the request with HTTP 422"),
    ],
)
def test_what_no_retry_mends_is_said_at_once(status, words, monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match=words):
        ask(lambda number, body: status)


def test_a_refused_key_is_not_told(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret-key")
    with pytest.raises(ConfigError, match="was refused") as caught:
        ask(lambda number, body: 401)
    assert "secret-key" not in str(caught.value)


def test_a_setting_that_the_model_refuses_is_left_out():
    def picky(number, body):
        for name in ("temperature", "max_tokens"):
            if name in body:
                return 400, {}, {"error": {"message": f"Unsupported parameter: '{name}'"}}
        return says("ok")

    answer, usage, server = ask(picky)
    assert answer == Answer(1, 0.9)
    assert usage.requests == 3
    assert {"temperature", "max_tokens"} & server.bodies[-1].keys() == set()


def test_nobody_at_home():
    settings = JudgeSettings(url="http://127.0.0.1:9/v1", model="m", retries=1, timeout=2.0)
    with JudgeClient(settings, pause=0.001) as client:
        assert client.ask(POLICY, TALK) is None
        assert client.usage.failed_requests == 2
