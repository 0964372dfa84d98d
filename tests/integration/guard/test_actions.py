"""What follows where a policy is flagged: it blocks, is reported or logged; changed while the guard serves."""

import logging
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from alora.guard import exported_metrics as metrics
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.standalone import make_app
from alora.wire.native import GuardResponse
from tests.integration.guard.conftest import MESSAGES, Says
from tests.integration.guard.hot import ADMIN, candidates, client, put, root, settle, verdicts

__all__ = ["candidates", "client", "root"]
URL = "/v1/guard/policies/advice"
FLAGGED, CLEAR = (50.0, -50.0), (-50.0, 50.0)


def sure(**logits):
    """Reads what it is given for each action."""
    return Says(lambda item, _: logits[item.action])


def guard_of(bundles, renderer, reader, *actions):
    served = [Served.of(bundle, action) for bundle, action in zip(bundles, actions, strict=False)]
    return GuardCore(served, renderer, reader)


def ask(app, path="/v1/guard", **fields):
    body = {"messages": MESSAGES, **fields}
    with TestClient(app) as client:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        while app.state.alora_guard._tasks:
            client.get("/v1/guard/health")
    return answer.json()


@pytest.mark.parametrize(("action", "said"), [("block", "block"), ("flag", "allow"), ("log", "allow")])
def test_what_follows_a_flagged_verdict(bundles, renderer, action, said):
    """The negative control of flag and log is block, on the same reading."""
    reader = sure(**{action: FLAGGED})
    answer = ask(make_app(guard_of(bundles, renderer, reader, action)))
    reported = [(one["policy"], one["flagged"], one["action"]) for one in answer["verdicts"]]
    assert reported == ([] if action == "log" else [("advice", True, action)])
    assert (answer["action"], answer["complete"], len(reader.asked)) == (said, True, 1)
    assert GuardResponse(**answer).blocked == (said == "block")


def test_only_what_blocks_stops_the_rest(bundles, renderer):
    app = make_app(guard_of(bundles, renderer, sure(flag=FLAGGED, block=CLEAR), "flag", "block"))
    answer = ask(app, stop_on_block=True)
    assert [one["status"] for one in answer["verdicts"]] == ["ok", "ok"]
    app = make_app(guard_of(bundles, renderer, sure(flag=FLAGGED, block=FLAGGED), "block", "flag"))
    assert [one["status"] for one in ask(app, stop_on_block=True)["verdicts"]] == ["ok", "skipped"]


@pytest.mark.parametrize(("action", "flagged"), [("block", True), ("flag", False)])
def test_moderations_and_litellm_block_by_the_action(bundles, renderer, action, flagged):
    app = make_app(guard_of(bundles, renderer, sure(**{action: FLAGGED}), action))
    (result,) = ask(app, "/v1/moderations")["results"]
    assert (result["flagged"], result["categories"]) == (flagged, {"advice": True})
    answer = ask(app, "/v1/guard/beta/litellm_basic_guardrail_api", structured_messages=MESSAGES)
    assert answer["action"] == ("BLOCKED" if flagged else "NONE")


def actions(client):
    cards = client.get("/v1/guard/policies").json()["policies"]
    return sorted((card["policy"], card["action"]) for card in cards)


def change(client, status=200, **body):
    answer = client.put(URL, json=body, headers=ADMIN)
    assert answer.status_code == status, answer.text
    settle(client)


def test_an_action_changes_without_a_restart_and_without_the_bundle(client, root):
    """Its folder may be gone by then: no action waits for a certificate."""
    before = verdicts(client)["advice"]
    (root / "advice").rename(root / "elsewhere")
    for action in ("flag", "log", "block"):
        change(client, action=action)
        assert actions(client)[0] == ("advice", action)
        assert verdicts(client).get("advice", {}).get("action") == (None if action == "log" else action)
    assert verdicts(client)["advice"]["adapter"] == before["adapter"]
    change(client, status=400, action="shadow")
    answer = client.put("/v1/guard/policies/parcels", json={"action": "flag"}, headers=ADMIN)
    assert (answer.status_code, "is not served" in answer.text) == (409, True)


def test_a_new_version_keeps_the_action_and_a_logged_one_is_promoted_or_ended_alone(client):
    reported = [("advice", "flag"), ("refunds", "block")]
    change(client, action="flag")
    assert put(client, "v7", action="log").status_code == 200
    assert actions(client) == [reported[0], ("advice", "log"), reported[1]]
    assert client.delete(f"{URL}?action=block", headers=ADMIN).status_code == 409  # it is at flag
    assert client.delete(f"{URL}?action=gone", headers=ADMIN).status_code == 400
    assert client.delete(f"{URL}?action=log", headers=ADMIN).status_code == 200
    assert client.delete(f"{URL}?action=log", headers=ADMIN).status_code == 409
    settle(client)
    assert put(client, "v7", action="log").status_code == 200
    change(client, bundle="v8")  # another than the logged one, which stays
    assert actions(client) == [reported[0], ("advice", "log"), reported[1]]
    change(client, bundle="v7")
    assert actions(client) == reported
    change(client, action="log")  # and what is reported may be logged again
    assert actions(client) == [("advice", "log"), ("refunds", "block")]
    assert list(verdicts(client)) == ["refunds"]
    assert list(verdicts(client, policies=["advice"])) == []  # an app that names it goes on


def test_the_last_policy_stays(client):
    assert client.delete(URL, headers=ADMIN).status_code == 200
    assert client.delete("/v1/guard/policies/refunds", headers=ADMIN).status_code == 409
    assert client.delete(URL, headers=ADMIN).status_code == 409  # gone already


def value(metric, *labels):
    return metric.labels(*labels)._value.get()


def test_logged_verdicts_are_counted_and_so_is_where_they_differ(bundles, renderer):
    bundle = bundles[0]
    policy = replace(bundle.policy, labels=("bad", "fair", "good"), answers=("A", "B", "C"))
    suffix = replace(bundle.suffix, label_token_ids=(11, 12, 13))
    manifest = replace(bundle.manifest, policy=policy, suffix=suffix)
    served = [Served(manifest, action) for action in ("block", "log")]
    before = value(metrics.VERDICTS, policy.id, "log", "ok", "false")
    for logged, differ in (((0.0, 9.0, 0.0), 0), ((0.0, 0.0, 9.0), 1)):
        guard = GuardCore(served, renderer, sure(block=(0.0, 9.0, 0.0), log=logged))
        assert [one["label"] for one in ask(make_app(guard))["verdicts"]] == ["fair"]
        assert value(metrics.DISAGREEMENT, policy.id, "fair", "good") == differ
    assert value(metrics.VERDICTS, policy.id, "log", "ok", "false") - before == 2


@pytest.mark.parametrize(
    ("body", "headers", "user"),
    [
        ({"metadata": {"user": "u-17"}}, {"X-Alora-User": "other"}, "u-17"),
        ({"metadata": {"session": "s"}}, {"X-Alora-User": "u-18"}, "u-18"),
        ({"metadata": {"user": "u 1\npolicy=\x1b"}}, {}, "u_1_policy__"),
        ({}, {}, "-"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/guard", "/v1/moderations"])
def test_the_log_names_the_caller_and_never_the_text(bundles, renderer, caplog, body, headers, user, path):
    caplog.set_level(logging.INFO, "alora.guard")
    app = make_app(guard_of(bundles, renderer, sure(block=FLAGGED, log=FLAGGED), "block", "log"))
    messages = [{"role": "user", "content": "my secret"}]
    with TestClient(app) as client:
        assert client.post(path, json={"messages": messages, **body}, headers=headers).status_code == 200
        while app.state.alora_guard._tasks:
            client.get("/v1/guard/health")
    lines = [dict(word.split("=", 1) for word in line.split()[1:]) for line in caplog.messages]
    found = [(line["user"], line["policy"], line["action"]) for line in lines]
    assert found == [(user, "advice", "block"), (user, "refunds", "log")]
    assert "secret" not in caplog.text
