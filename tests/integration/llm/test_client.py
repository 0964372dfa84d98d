"""The judge against a real server that fails in every way that servers do."""

import json

import pytest

from alora.config.schema import JudgeSettings
from alora.data.conversation import Conversation, Message
from alora.errors import ConfigError
from alora.llm.client import JudgeClient, NoAnswer
from alora.llm.judge_prompt import Answer
from alora.policy import Policy
from tests.unit.llm.endpoint import completion, endpoint, says

POLICY = Policy("refunds", "No refunds", "Nobody promises a refund.")
TALK = Conversation("c", (Message("user", "May I have my money back?"),))


def ask(behaviour, **settings):
    """One question: the answer, what it took, and what the server saw."""
    with endpoint(behaviour) as server:
        given = JudgeSettings(
            **{"url": server.url, "model": "m", "api_key_env": "JUDGE_KEY", "timeout": 5.0} | settings
        )
        with JudgeClient(given, pause=0.001) as client:
            return client.ask(POLICY, TALK), client.usage, server


@pytest.mark.parametrize(
    "bad",
    [
        503,
        (429, {"Retry-After": "0"}, {"error": {"message": "slow down"}}),
        b'{"choices": [{"mess',
        {"choices": []},
        {"choices": [{"index": 0, "message": None}]},
    ],
)
def test_a_failure_is_tried_again_and_counted(bad):
    answer, usage, server = ask(lambda number, body: bad if number < 2 else says("ok"))
    assert answer == Answer(1, 0.9)
    assert (usage.requests, usage.failed_requests) == (3, 2)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("text", ["I refuse.", json.dumps({"label": "maybe"}), None])
def test_words_that_are_no_label_are_asked_for_once_more_and_then_left(text):
    assert ask(lambda number, body: completion(text), retries=0)[0] is NoAnswer.UNREADABLE
    answer, usage, _ = ask(lambda number, body: completion(text))
    assert answer is NoAnswer.UNREADABLE
    assert (usage.requests, usage.unreadable_answers, usage.failed_requests) == (2, 2, 0)
    assert usage.input_tokens == 200  # what could not be read was paid for
    answer, usage, _ = ask(lambda number, body: completion(text) if number == 0 else says("ok"))
    assert answer == Answer(1, 0.9)


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "JUDGE_KEY is missing"), (404, "ends with its version"), (405, "takes no chat completions")],
)
def test_what_no_retry_mends_is_said_at_once(status, words, monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match=words):
        ask(lambda number, body: status)


@pytest.mark.parametrize(
    ("status", "error", "why"),
    [
        (400, {"message": "The response was filtered.", "code": "content_filter"}, NoAnswer.FILTERED),
        (400, {"message": "no", "code": "content_policy_violation"}, NoAnswer.FILTERED),
        (400, {"message": "2100 tokens, max_tokens included", "code": "context_length_exceeded"}, NoAnswer.REFUSED),
        (422, {"message": "max_tokens must be at most 100"}, NoAnswer.REFUSED),
    ],
)
def test_a_refused_request_costs_its_row_alone_and_no_setting(status, error, why):
    def refusing(number, body):
        return (status, {}, {"error": error}) if "money" in body["messages"][1]["content"] else says("ok")

    with endpoint(refusing) as server:
        with JudgeClient(JudgeSettings(url=server.url, model="m"), pause=0.001) as client:
            assert client.ask(POLICY, TALK) is why
            assert error["message"][:20] in client.refusal
            assert client.ask(POLICY, Conversation("d", (Message("user", "Hello."),))) == Answer(1, 0.9)
        assert len(server.bodies) == 2
        assert {"temperature", "max_tokens"} <= server.bodies[-1].keys()


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported value: '{}' does not support 0 with this model.",
        "{} is not supported with this model. Use 'max_completion_tokens' instead.",
        "Unrecognized request argument supplied: {}",
    ],
)
def test_a_setting_that_the_model_refuses_is_left_out(words):
    def picky(number, body):
        for name in ("temperature", "max_tokens"):
            if name in body:
                return 400, {}, {"error": {"message": words.format(name)}}
        return says("ok")

    answer, usage, server = ask(picky, retries=0)
    assert answer == Answer(1, 0.9)
    assert usage.requests == 3
    assert {"temperature", "max_tokens"} & server.bodies[-1].keys() == set()


def test_neither_key_nor_text_follows_to_another_place(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    with endpoint(lambda number, body: says("ok")) as elsewhere:
        headers = {"Location": f"{elsewhere.url}/chat/completions"}
        with pytest.raises(ConfigError, match=f"redirects to {elsewhere.url}"):
            ask(lambda number, body: (307, headers, b""))
        assert elsewhere.bodies == []
