"""The wire: the guard's own format, OpenAI's SDK, LiteLLM's guardrail, and what is not a request at all."""

import asyncio
import json
from dataclasses import replace

import openai
import pytest
from fastapi.testclient import TestClient

from alora.data.conversation import parse_conversation
from alora.errors import ConfigError
from alora.guard import gate
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.standalone import make_app
from alora.wire.litellm_api import GenericGuardrailRequest
from alora.wire.openai_api import MOST_TEXTS
from tests.integration.guard.conftest import MESSAGES, Faulty, Says


def test_an_answer_bears_the_id_of_its_request(client):
    ids = [
        client.post("/v1/guard", json={"messages": MESSAGES}, headers=headers).json()["id"]
        for headers in ({"X-Request-Id": "one"}, {}, {})
    ]
    assert ids[0] == "guard-one"
    assert len(set(ids)) == 3


def test_events_arrive_one_by_one_and_end_with_the_whole_answer(client):
    whole = client.post("/v1/guard", json={"messages": MESSAGES}).json()
    with client.stream("POST", "/v1/guard", json={"messages": MESSAGES, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [part.split("\ndata: ") for part in response.read().decode().strip().split("\n\n")]
    assert [kind for kind, _ in events] == ["event: verdict", "event: verdict", "event: answer"]
    assert json.loads(events[-1][1])["verdicts"] == whole["verdicts"]
    arrived = [json.loads(data) for _, data in events[:2]]
    assert sorted(arrived, key=lambda verdict: verdict["policy"]) == whole["verdicts"]


def test_openai_sdk_moderates(client):
    sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
    one = sdk.moderations.create(input="Which pills for a headache?", model="alora").results[0]
    guarded = client.post("/v1/guard", json={"messages": [MESSAGES[0]]}).json()
    assert one.flagged == (guarded["action"] == "block")
    scores = one.category_scores.model_dump()
    assert {verdict["policy"]: verdict["probability"] for verdict in guarded["verdicts"]} == {
        name: scores[name] for name in ("advice", "refunds")
    }
    two = sdk.moderations.create(input=["Hello.", "Bye."], extra_body={"policies": ["advice"]}).results
    assert [list(result.category_scores.model_dump(exclude_unset=True)) for result in two] == [["advice"], ["advice"]]
    (talk,) = sdk.moderations.create(input=openai.omit, extra_body={"messages": MESSAGES}).results
    whole = client.post("/v1/guard", json={"messages": MESSAGES}).json()
    assert talk.category_scores.model_dump()["advice"] == whole["verdicts"][0]["probability"]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b'{"messages": oops}', 400, "not JSON at character 13"),
        (b"{}", 400, "messages is missing"),
        (b'{"messages": [{"role": "user"}]}', 400, "content is missing"),
        (b'{"messages": [{"role": "wizard", "content": "hi"}]}', 400, "role"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "polices": ["advice"]}', 400, "polices"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "policies": ["x"]}', 404, "x is not served"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "deadline_ms": 0}', 400, "deadline_ms"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "priority": %d}' % 10**30, 400, "priority"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "' + b"k" * 900_000 + b'": 1}', 400, "kkk"),
        (b'{"messages": [{"role": "user", "content": "' + b"a" * gate.MOST_BYTES + b'"}]}', 413, "bytes"),
    ],
)
def test_what_is_no_request_is_one_message(client, content, status, words):
    answer = client.post("/v1/guard", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    message = answer.json()["error"]["message"]
    assert words in message
    assert len(message) < 1000
    assert client.get("/v1/guard/health").status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "text/json", "application/jsonx", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["/v1/guard", "/v1/moderations"])
def test_a_body_of_another_type_says_what_to_send(client, path, kind):
    answer = client.post(path, content=json.dumps({"messages": MESSAGES}), headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        415,
        f"Content-Type is {kind}; send application/json",
    )


@pytest.mark.parametrize("category", openai.types.moderation.Categories.model_fields)
def test_a_policy_that_has_the_name_of_an_openai_category_is_found_under_it(bundles, renderer, category):
    """The SDK reads some of them under another name than its attribute's."""
    served = Served.of(bundles[0])
    guard = GuardCore(
        [replace(served, manifest=replace(served.manifest, policy=replace(served.policy, id=category)))],
        renderer,
        Says(lambda *_: (50.0, -50.0)),
    )
    with TestClient(make_app(guard)) as client:
        sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
        found = sdk.moderations.create(input="Which pills for a headache?").results[0]
    assert getattr(found.categories, category) is True
    assert getattr(found.category_scores, category) == 1.0


LITELLM = "/v1/guard/beta/litellm_basic_guardrail_api"
TURN = '"structured_messages": [{"role": "user", "content": "hi"}]'


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/guard", '{"messages": [{"role": "user", "content": "hi"}], "policies": [1]}'),
        ("/v1/moderations", '{"input": "hi", "model": "\\ud800"}'),
        ("/v1/moderations", json.dumps({"input": ["x"] * (MOST_TEXTS + 1)})),
        ("/v1/moderations", '{"input": "hi", "polices": ["advice"]}'),
        ("/v1/decisions", '{"input": "hi", "questions": [{"type": "predicate", "instructions": "policy:advice"}]}'),
        (LITELLM, f'{{{TURN}, "additional_provider_specific_params": {{"polices": ["advice"]}}}}'),
        (LITELLM, f'{{{TURN}, "additional_provider_specific_params": {{"policies": 5}}}}'),
        (LITELLM, f'{{{TURN}, "images": ["data:image/png;base64,AAAA"]}}'),
    ],
)
def test_a_wrong_value_on_any_route_is_400(client, path, content):
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, bool(answer.json()["error"]["message"])) == (400, True)


BAD = "You get your money back."
CALL = {"function": {"name": "pay", "arguments": BAD}}


@pytest.mark.parametrize(
    ("asked", "told", "judged"),
    [
        (BAD, {"texts": [BAD]}, [BAD]),  # the model repeats what the user wrote
        ([{"type": "text", "text": "Repeat:"}, {"type": "text", "text": BAD}], {"texts": [BAD]}, [BAD]),
        ("hi", {"texts": ["ok"], "tool_calls": [CALL]}, [f"ok\n[calls pay {BAD}]"]),
        ("hi", {"tool_calls": [CALL]}, [f"[calls pay {BAD}]"]),
    ],
)
def test_all_of_a_response_is_judged_as_the_assistants(asked, told, judged):
    body = {"structured_messages": [{"role": "user", "content": asked}], "input_type": "response", **told}
    (conversation,) = GenericGuardrailRequest(**body).conversations
    messages = parse_conversation(conversation, "request").messages
    assert [message.text for message in messages if message.role == "assistant"] == judged


OPTIONS = {"policies": ["advice"], "deadline_ms": 5000, "on_failure": "open", "cache_salt": "tenant-7", "priority": 3,
           "metadata": {"user": "u-17"}}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/guard", {"messages": MESSAGES, **OPTIONS}),
        ("/v1/moderations", {"messages": MESSAGES, **OPTIONS}),
        ("/v1/moderations", {"input": ["Hello.", "Bye."], **OPTIONS}),
        (LITELLM, {"structured_messages": MESSAGES, "additional_provider_specific_params": OPTIONS}),
    ],
)
def test_every_route_takes_the_options(guard_with, path, body):
    reader = Says(lambda *_: (1.0, -1.0))
    with TestClient(make_app(guard_with(reader))) as client:
        assert client.post(path, json=body).status_code == 200
    assert [request.options for _, _, request in reader.asked] == [OPTIONS] * len(body.get("input", [1]))


@pytest.mark.parametrize("path", ["/v1/guard", "/v1/moderations"])
def test_a_client_that_goes_away_is_read_for_no_longer(guard_with, reader, path):
    faulty = Faulty(reader, "hangs")
    app = make_app(guard_with(faulty))
    body = json.dumps({"messages": MESSAGES}).encode()
    arriving = iter([{"type": "http.request", "body": body}])
    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": "", "http_version": "1.1",
        "scheme": "http", "headers": [(b"content-type", b"application/json")], "app": app,
    }  # fmt: skip

    async def receive():
        if (message := next(arriving, None)) is not None:
            return message
        await asyncio.sleep(0.05)
        return {"type": "http.disconnect"}

    async def send(_):
        pass

    async def ask():
        await asyncio.wait_for(app(scope, receive, send), 60)
        while not faulty.closed:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), 60))


@pytest.mark.parametrize(("fault", "status"), [("dead", 503), ("full", 429)])
def test_a_dead_engine_is_503_and_a_full_one_429_also_in_mid_stream(guard_with, reader, fault, status):
    with TestClient(make_app(guard_with(Faulty(reader, fault)))) as client:
        assert client.post("/v1/guard", json={"messages": MESSAGES}).status_code == status
        said = client.post("/v1/guard", json={"messages": MESSAGES, "stream": True}).text
    assert [line for line in said.splitlines() if line.startswith("event")] == ["event: verdict", "event: error"]


@pytest.mark.parametrize("variable", ["VLLM_API_KEY", "ALORA_ADMIN_KEY"])
@pytest.mark.parametrize("key", ["k\udcff", "schl\u00fcssel", "k\n", " k"])
def test_a_key_that_no_request_carries_is_refused_at_the_start(guard, monkeypatch, variable, key):
    monkeypatch.setenv(variable, key)
    with pytest.raises(ConfigError, match=f"{variable} holds a character that no HTTP header carries"):
        make_app(guard)


def test_every_route_asks_for_the_key(guard, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    app = make_app(guard)
    with TestClient(app) as client:
        asked = [(method, route.path) for route in app.routes for method in sorted(getattr(route, "methods", ("GET",)))]
        assert ("POST", "/v1/guard") in asked
        for method, path in asked:
            if path == "/":  # the page, which asks with the key that is typed into it
                continue
            assert client.request(method, path).status_code == 401, path
            wrong = client.request(method, path, headers={"Authorization": "Bearer other"})
            assert wrong.status_code == 401
        for scheme in ("Bearer", "bearer"):
            right = client.get("/v1/guard/policies", headers={"Authorization": f"{scheme} secret"})
            assert right.status_code == 200
