"""OpenAI's Decisions by its own SDK: a question is a served policy's, or it is refused."""

import openai
import pytest

from tests.integration.guard.conftest import MESSAGES

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
            "content": [{"type": "input_text", "text": "My parcel?"}, {"type": "input_json", "data": {"order": 7}}],
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
        ({"type": "choice", "instructions": RULE, "choices": [{"value": 1}]}, r"value is 1; it must be .* or .*"),
        (predicate("policy:parcels"), "another question"),
        (predicate("policy:refunds", name="advice"), "another question"),
        ({"type": "score", "instructions": "policy:advice", "levels": [{"label": "low"}]}, "'score'; it must be"),
        ({"type": "choice", "instructions": "policy:advice", "choices": [{"value": "ok"}, {"value": "no"}]}, "labels"),
        (predicate([{"type": "input_image", "image_url": "data:,"}]), "input_text"),
    ],
)
def test_another_question_is_400(decide, question, words):
    with pytest.raises(openai.BadRequestError, match=words):
        decide(question)
