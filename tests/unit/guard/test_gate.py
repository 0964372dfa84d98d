"""What a refused request is told."""

import typing

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

from alora.guard import routes
from alora.guard.gate import OneGate
from alora.wire.litellm_api import GenericGuardrailRequest
from alora.wire.native import Closed, GuardRequest, PutPolicy
from alora.wire.openai_api import MOST_TEXTS, DecisionRequest, ModerationRequest

router = APIRouter(route_class=OneGate)


@router.post("/")
async def take(body: ModerationRequest) -> None:
    pass


@pytest.mark.parametrize("wrong", [5, ["x"] * (MOST_TEXTS + 1), [{"type": "text"}, 3]], ids=["number", "long", "mixed"])
def test_the_place_of_a_wrong_value_names_no_function_of_pythons(wrong):
    app = FastAPI()
    app.include_router(router)
    with TestClient(app) as client:
        answer = client.post("/", json={"input": wrong})
    message = answer.json()["error"]["message"]
    assert (answer.status_code, message.startswith("input.str: Input should be a valid string")) == (400, True)
    assert not [word for word in ("function", "0x", "<") if word in message]


ENDPOINTS = [route.endpoint for route in routes.router.routes if isinstance(route, OneGate)]
BODIES = [model for endpoint in ENDPOINTS if (model := typing.get_type_hints(endpoint).get("body"))]
WRONG, UNKNOWN = [1] * 1000, {"": 1} | {f"key{number}": 1 for number in range(1000)}
QUESTION = {"type": "choice", "instructions": WRONG, "choices": [{}] * 255}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (GuardRequest, {"messages": [], "policies": WRONG}),
        (GuardRequest, {"messages": []} | UNKNOWN),
        (ModerationRequest, {"input": WRONG}),
        (DecisionRequest, {"model": "alora", "input": WRONG, "questions": [QUESTION] * 400}),
        (GenericGuardrailRequest, {"texts": WRONG, "additional_provider_specific_params": {"policies": WRONG}}),
        (GenericGuardrailRequest, {"additional_provider_specific_params": UNKNOWN}),
        (PutPolicy, {"bundle": "one", "tags": WRONG}),
        (PutPolicy, {"bundle": "one"} | UNKNOWN),
    ],
)
def test_a_thousand_wrong_values_are_a_handful_of_errors(model, given):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    assert caught.value.error_count() <= 5


def parts(schema):
    yield from [schema] if isinstance(schema, dict) else []
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts(inner)


@pytest.mark.parametrize("model", BODIES)
def test_no_list_or_object_of_a_request_has_an_error_for_each_of_its_values(model):
    found = [part for part in parts(model.__pydantic_core_schema__) if "type" in part]
    lists = [part for part in found if part["type"] == "list" and part["items_schema"]["type"] != "any"]
    assert found
    closed = [
        part["cls"] for part in found if part["type"] == "model" and part["cls"].model_config.get("extra") == "forbid"
    ]
    assert [part for part in lists if not part.get("fail_fast")] == []
    assert [one for one in closed if not issubclass(one, Closed)] == []


def test_an_unknown_key_is_named_with_the_known_ones():
    with pytest.raises(ValidationError, match="'policy' is not known here; known are policies, deadline_ms"):
        GuardRequest.model_validate({"messages": [], "policy": ["one"]})


class Compared(str):
    """A text that counts how often it is compared."""

    times = 0

    def __eq__(self, other):
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_responses_texts_are_looked_up_and_not_compared_with_every_part():
    texts = [Compared(f"text {number}") for number in range(100)]
    said = [{"type": "text", "text": f"part {number}"} for number in range(100)] + [{"text": "text 7"}, {"text": {}}]
    asked = GenericGuardrailRequest.model_construct(
        texts=texts, structured_messages=[{"role": "assistant", "content": said}], input_type="response"
    )
    assert [choice[-1]["content"] for choice in asked.conversations[1:]] == texts[:7] + texts[8:]
    assert Compared.times < 500
