"""What a refused request is told."""

import typing

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

from alora.guard import routes
from alora.guard.gate import OneGate
from alora.wire.native import Closed, GuardRequest
from alora.wire.openai_api import MOST_TEXTS, ModerationRequest

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
