"""OpenAI's Decisions by its own SDK: a question is a served policy's, or it is refused."""

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from alora.guard.core import GuardCore
from alora.guard.endpoint import GuardEndpoint
from alora.guard.packed import PackedReader
from alora.guard.reader import Served
from alora.guard.standalone import make_app
from tests.integration.guard.conftest import MESSAGES, Faulty

RULE = "No medical advice.\nNo legal advice."
CHOICES = [{"value": "ok"}, {"value": "violation", "description": "it breaks the rule"}]


def predicate(instructions, **fields):
    return {"type": "predicate", "instructions": instructions, **fields}


@pytest.fixture
def decide(client):
    sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    return lambda *questions, **fields: sdk.decisions.create(
        **{"model": "alora", "input": MESSAGES, "questions": questions, **fields}
    )


def test_each_question_gets_its_policys_verdict(client, decide):
    guarded = {v["policy"]: v for v in client.post("/v1/guard", json={"messages": MESSAGES}).json()["verdicts"]}
    decision = decide(
        predicate("policy:refunds", name="money back"),
        predicate(RULE, name="advice"),
        predicate([{"type": "input_text", "text": RULE}]),
        {"type": "choice", "instructions": "policy:advice", "choices": CHOICES},
    )
    money, by_name, by_rule, choice = decision.answers
    assert (money.type, money.name) == ("predicate", "money back")
    # What is asked together decides how rows are rounded.
    assert money.probability == pytest.approx(guarded["refunds"]["probability"], abs=1e-6)
    assert by_name.probability == by_rule.probability == pytest.approx(guarded["advice"]["probability"], abs=1e-6)
    assert by_rule.name is None
    assert (choice.choice, choice.name) == (guarded["advice"]["label"], None)
    shares = {each.value: each.probability for each in choice.probabilities}
    assert list(shares) == ["ok", "violation"]
    assert shares == pytest.approx(guarded["advice"]["probabilities"], abs=1e-6)
    assert choice.confidence == shares[choice.choice]
    assert decision.usage.total_tokens == decision.usage.input_tokens + 2


def test_input_is_read_as_the_conversation_that_it_is(client, decide):
    call = {"id": "1", "function": {"name": "find", "arguments": '{"order": 7}'}}
    talk = [
        {"role": "user", "content": 'My parcel?\n{"order": 7}'},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "late"},
    ]
    given = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "My parcel?"},
                {"type": "input_json", "data": {"order": 7}},
            ],
        },
        {"type": "function_call", "call_id": "1", "name": "find", "arguments": '{"order": 7}'},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "late"}]},
    ]
    for messages, value in ((talk, given), ([{"role": "user", "content": "Which pills?"}], "Which pills?")):
        wanted = client.post("/v1/guard", json={"messages": messages}).json()["verdicts"][0]["probability"]
        (answer,) = decide(predicate("policy:advice"), input=value).answers
        assert answer.probability == pytest.approx(wanted, abs=1e-6)  # alone, not packed with another


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (predicate("Does it give medical advice?", name="advice"), "any answer would be to another question"),
        (predicate(RULE.lower()), "another question"),
        (predicate("", name="advice"), "another question"),
        (predicate("policy:parcels"), "another question"),
        (predicate("policy:refunds", name="advice"), "another question"),
        ({"type": "score", "instructions": "policy:advice", "levels": [{"label": "low"}]}, "score"),
        ({"type": "choice", "instructions": "policy:advice", "choices": [{"value": "ok"}, {"value": "no"}]}, "labels"),
        (predicate([{"type": "input_image", "image_url": "data:,"}]), "input_text"),
    ],
)
def test_another_question_is_400(decide, question, words):
    with pytest.raises(openai.BadRequestError, match=words):
        decide(question)


@pytest.mark.parametrize(
    "given", [[], [{"type": "reasoning"}], [{"role": "user", "content": [{"type": "input_image"}]}]]
)
def test_what_is_no_conversation_is_400(decide, given):
    with pytest.raises(openai.BadRequestError):
        decide(predicate("policy:advice"), input=given)


def test_no_text_of_an_item_is_lost(client, decide):
    call = {"id": "1", "function": {"name": "find", "arguments": '{"order": 7}'}}
    said = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Wait.", "logprobs": [], "annotations": []}],
    }
    wanted = client.post("/v1/guard", json={"messages": [{**said, "tool_calls": [call]}]}).json()["verdicts"][0]
    given = {**said, "id": "m", "type": "message", "status": "completed", "phase": None, "tool_calls": [call]}
    (answer,) = decide(predicate("policy:advice"), input=[given]).answers
    assert answer.probability == pytest.approx(wanted["probability"], abs=1e-6)
    called = {"id": "f", "call_id": "1", "name": "find", "namespace": "n", "status": "completed"}
    wanted = client.post("/v1/guard", json={"messages": [{"role": "assistant", "tool_calls": [call]}]}).json()
    for item in (
        {**called, "type": "function_call", "arguments": None, "input": '{"order": 7}'},
        {**called, "type": "custom_tool_call", "input": '{"order": 7}'},
    ):
        (answer,) = decide(predicate("policy:advice"), input=[item]).answers
        assert answer.probability == pytest.approx(wanted["verdicts"][0]["probability"], abs=1e-6)


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ({"type": "message", "role": "user", "content": "a", "text": "b"}, "text"),
        ({"type": "function_call", "name": "f", "arguments": "{}", "input": "b"}, "input"),
        ({"type": "function_call_output", "call_id": "1", "output": "a", "content": "b"}, "content"),
        ({"role": "user", "content": [{"type": "input_json", "data": 1, "text": "b"}]}, "text"),
    ],
)
def test_an_item_with_a_further_text_is_400(decide, item, key):
    with pytest.raises(openai.BadRequestError, match=f"'{key}' next to "):
        decide(predicate("policy:advice"), input=[item])


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_what_is_no_json_is_400(client, kind):
    for content in (b"{", b"[]", b"\xff", b"{}", b"[" * 100_000):
        answer = client.post("/v1/decisions", content=content, headers={"Content-Type": kind})
        assert answer.status_code in (400, 404, 415), content  # 404: another model than ours, or none


def test_a_policy_without_an_answer_refuses(base, bundles, renderer):
    failing = GuardCore(
        [Served.of(bundle) for bundle in bundles], renderer, Faulty(PackedReader(base, bundles), "hangs")
    )
    with TestClient(make_app(failing)) as client:
        sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
        first, second = sdk.decisions.create(
            model="alora",
            input=MESSAGES,
            questions=[predicate("policy:advice", name="a"), predicate("policy:refunds", name="b")],
            extra_body={"deadline_ms": 2000},
        ).answers
    assert first.type == "predicate"
    assert (second.type, second.name) == ("refusal", "b")


def test_another_model_is_404_or_the_servers_own(client, decide):
    with pytest.raises(openai.NotFoundError, match="gpt-6-luna"):
        decide(predicate("policy:advice"), model="gpt-6-luna")
    app = FastAPI()

    @app.post("/v1/decisions")
    def theirs(body: dict):
        return {"theirs": body["model"]}

    GuardEndpoint().attach_router(app)
    app.router.routes.remove(next(route for route in app.routes if getattr(route, "endpoint", None) is theirs))
    body = {"model": "base", "input": "hi", "questions": [predicate("Is it rude?")]}
    with TestClient(app) as other:
        assert other.post("/v1/decisions", json=body).json() == {"theirs": "base"}
        assert other.post("/v1/decisions", json=body | {"model": "alora"}).status_code == 503  # no guard yet


@pytest.mark.parametrize(
    ("field", "value"), [("cache_salt", "tenant"), ("on_failure", "open"), ("policies", ["advice"]), ("stream", True)]
)
def test_an_option_of_the_other_routes_is_not_passed_over(client, field, value):
    body = {"model": "alora", "input": "hi", "questions": [predicate("policy:advice")], field: value}
    answer = client.post("/v1/decisions", json=body)
    assert (answer.status_code, f"{field} is not an option" in answer.json()["error"]["message"]) == (400, True)
