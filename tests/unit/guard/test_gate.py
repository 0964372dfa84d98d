"""What a refused request is told."""

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from alora.guard.gate import OneGate
from alora.guard.wire import MOST_TEXTS, ModerationRequest

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
