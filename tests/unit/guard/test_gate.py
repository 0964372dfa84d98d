"""What a refused request is told."""

import typing

import pytest

from alora.guard import routes
from alora.guard.gate import OneGate
from alora.wire.native import Closed

ENDPOINTS = [route.endpoint for route in routes.router.routes if isinstance(route, OneGate)]
BODIES = [model for endpoint in ENDPOINTS if (model := typing.get_type_hints(endpoint).get("body"))]


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
