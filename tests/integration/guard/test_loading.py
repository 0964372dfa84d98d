"""Policies come and go: certified before the switch, never torn, the same after a restart and in a second process."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from filelock import FileLock

from alora.bundle.golden import write_golden
from alora.bundle.read import load_bundle
from alora.data.conversation import parse_conversation
from alora.guard import loading
from alora.guard import reading_in_process as packed
from alora.guard.reader import Served
from alora.guard.reading_in_process import PackedReader
from alora.guard.serving_set import FILE, ServingSet
from alora.received import file_record
from tests.integration.guard import hot
from tests.integration.guard.conftest import MESSAGES
from tests.integration.guard.hot import ADMIN, app_of, candidates, client, put, root, running, settle, verdicts
from tests.unit.bundle.cases import with_weights

__all__ = ["candidates", "client", "root"]


def test_a_request_that_is_being_rendered_ends_with_the_weights_it_began_with(base, root):
    """A long conversation is rendered in a thread, while a policy is replaced and what it answered with is unloaded."""
    rendering, replaced = threading.Event(), threading.Event()
    with running(base, root) as client:
        guard, old = client.app.state.alora_guard, Served.of(load_bundle(root / "advice")).name

        def render(conversation, asked):
            if len(conversation.messages) == 1:
                rendering.set()
                assert replaced.wait(60)
            return type(guard).render(guard, parse_conversation(MESSAGES, "golden"), asked)

        guard.render = render
        long = [{"role": "user", "content": "hello " * 3000}]
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.post, "/v1/guard", json={"messages": long, "on_failure": "open"})
            assert rendering.wait(60)
            assert put(client, "v7").status_code == 200
            replaced.set()
            answer = asking.result().json()
        assert [(one["status"], one["adapter"] == old) for one in answer["verdicts"]] == [("ok", True), ("ok", False)]
        settle(client)
        assert old not in guard._reader._weights, "nothing needs the old weights any more"


def test_a_recalibrated_bundle_is_served_at_its_own_threshold(client, base, root):
    """Its weights are those that are served already, so both have one name."""
    point = load_bundle(root / "advice").manifest.operating_point
    for threshold in (0.0001, 0.9999):
        name = reissue(root, f"recalibrated{threshold}", operating_point=replace(point, threshold=threshold))
        with running(base, root) as second:
            answer = put(client, name)
            assert (answer.status_code, answer.json()["threshold"]) == (200, threshold), answer.text
            with running(base, root) as restarted:
                for server in (client, restarted):
                    verdict = verdicts(server)["advice"]
                    assert (verdict["threshold"], verdict["flagged"]) == (threshold, threshold < 0.5)
                    assert server.get("/v1/guard/policies").json()["policies"][0]["threshold"] == threshold
            for _ in range(100):
                if verdicts(second)["advice"]["threshold"] == threshold:
                    break
            assert verdicts(second)["advice"]["flagged"] == (threshold < 0.5)


def test_a_bundle_that_changed_in_its_folder_is_put_again_first(client, base, root):
    assert put(client, "v7").status_code == 200
    manifest = load_bundle(root / "v7").manifest
    point = replace(manifest.operating_point, threshold=0.0001)
    (root / "v7" / "alora.json").write_text(replace(manifest, operating_point=point).to_json())
    with running(base, root) as restarted:
        answer = restarted.get("/v1/guard/health")
        assert (answer.status_code, "has changed since it was loaded" in answer.text) == (503, True)
    assert put(client, "v7").json()["threshold"] == 0.0001


def test_policies_are_asked_for_by_tag(client, base, root):
    for tag in ("a tag", "-", "", "x" * 65):
        body = {"bundle": "advice", "tags": [tag]}
        assert client.put("/v1/guard/policies/advice", json=body, headers=ADMIN).status_code == 400
    body = {"bundle": "advice", "tags": ["health", "eu"]}
    answer = client.put("/v1/guard/policies/advice", json=body, headers=ADMIN)
    assert (answer.status_code, answer.json()["tags"]) == (200, ["health", "eu"])
    assert put(client, "refunds", "refunds").status_code == 200
    with running(base, root) as restarted:
        for each in (client, restarted):
            assert list(verdicts(each, policies=["tag:health"])) == ["advice"]
            assert list(verdicts(each, policies=["refunds", "tag:eu", "advice"])) == ["refunds", "advice"]
            refused = each.post("/v1/guard", json={"messages": MESSAGES, "policies": ["tag:us"]})
            assert (refused.status_code, "tag:health" in refused.text) == (404, True)
    for bundle, action in (("v7", "log"), ("v7", "block"), ("advice", "block")):  # out and back, as documented
        answer = put(client, bundle, action=action)
        assert (answer.status_code, answer.json()["tags"]) == (200, ["health", "eu"])
        assert list(verdicts(client, policies=["tag:eu"])) == ["advice"]
    body = {"bundle": "advice", "tags": []}
    assert client.put("/v1/guard/policies/advice", json=body, headers=ADMIN).json()["tags"] == []
    assert client.post("/v1/guard", json={"messages": MESSAGES, "policies": ["tag:eu"]}).status_code == 404


def flip(root):
    file = root / "v7" / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return "v7", "was changed"


def reissue(root, folder, golden=None, of="advice", **changed):
    """The weights of one bundle in another."""
    shutil.copytree(root / of, root / folder)
    bundle = load_bundle(root / folder)
    if golden is not None:
        write_golden(root / folder / "golden.jsonl", golden)
        files = bundle.manifest.files | {"golden.jsonl": file_record(root / folder / "golden.jsonl")}
        changed["files"] = files
    (root / folder / "alora.json").write_text(replace(bundle.manifest, **changed).to_json())
    return folder


def rename(root):
    policy = replace(load_bundle(root / "advice").policy, id="second")
    return reissue(root, "second", policy=policy), "answers policy 'second'"


def turn_golden(root, of="advice"):
    rows = load_bundle(root / of).golden
    turned = tuple(replace(row, label_logits=tuple(-value for value in row.label_logits)) for row in rows)
    return reissue(root, "turned", turned, of), "golden rows differ"


BAD = {
    "a flipped bit": flip,
    "the same weights for another policy": rename,
    "the same weights with other golden rows": turn_golden,
    "another base": lambda root: ("foreign", "different bases"),
    "another policy": lambda root: ("refunds", "answers policy 'refunds'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_bundle_is_409_and_the_old_one_keeps_serving(client, root, fault):
    before = verdicts(client)
    name, words = BAD[fault](root)
    answer = put(client, name)
    assert answer.status_code == 409
    assert words in answer.json()["error"]["message"]
    assert verdicts(client) == before
    assert not (root / FILE).exists()


def test_weights_for_which_there_is_no_memory_leave_what_is_served_as_it_was(client, monkeypatch):
    """Not the base without any adapter, in their name."""
    before = verdicts(client)

    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(packed, "Scorer", full)
    answer = put(client, "v7")
    assert (answer.status_code, "not enough memory" in answer.text) == (409, True)
    assert verdicts(client) == before


def test_golden_rows_are_asked_of_the_engine_itself(client, root, monkeypatch):
    """A bundle that is whole, on an engine that computes it wrongly."""
    before = verdicts(client)
    load = PackedReader.load

    async def wrong(self, served, bundle):
        scaled = {name: (a_RD, b_OR * 3) for name, (a_RD, b_OR) in bundle.weights.tensors.items()}
        await load(self, served, with_weights(replace(bundle), replace(bundle.weights, tensors=scaled)))

    monkeypatch.setattr(PackedReader, "load", wrong)
    answer = put(client, "v7")
    assert (answer.status_code, "golden rows differ" in answer.text) == (409, True)
    assert verdicts(client) == before


def test_no_policy_is_served_before_each_gave_its_golden_answer(base, root):
    """A whole bundle whose golden rows are another adapter's, with a manifest that agrees."""
    turn_golden(root, "refunds")
    shutil.rmtree(root / "refunds")
    (root / "turned").rename(root / "refunds")
    with TestClient(app_of(base, root)) as client:
        for _ in range(2):
            answer = client.get("/v1/guard/health")
            assert answer.status_code == 503
            assert "refunds@" in answer.text
            assert "golden rows differ" in answer.text
            assert client.post("/v1/guard", json={"messages": MESSAGES}).status_code == 503
            assert put(client, "v7").status_code == 503


def test_who_may_change_policies(client, monkeypatch):
    for headers in ({}, {"X-Alora-Admin-Key": "other"}, {"Authorization": "Bearer admin"}):
        assert put(client, "v7", headers=headers).status_code == 403
        assert client.delete("/v1/guard/policies/advice", headers=headers).status_code == 403
    monkeypatch.delenv("ALORA_ADMIN_KEY")
    assert put(client, "v7", headers={"X-Alora-Admin-Key": ""}).status_code == 403


def test_replaced_under_load_every_verdict_is_of_the_weights_that_it_names(base, root):
    """Ten replaces while two askers never pause: no answer is lost, torn, or another digest's."""
    wanted = {
        Served.of(bundle).name: hot.probability(base, bundle)
        for bundle in (load_bundle(root / name) for name in ("advice", "v7", "v8"))
    }
    app, answers, done = app_of(base, root), [], threading.Event()

    def ask_on(client):
        while not done.is_set():
            answers.append(verdicts(client)["advice"])

    with TestClient(app) as client:
        askers = [threading.Thread(target=ask_on, args=(client,)) for _ in range(2)]
        for asker in askers:
            asker.start()
        try:
            replies = [put(client, ("v7", "v8")[number % 2]).status_code for number in range(10)]
        finally:
            done.set()
            for asker in askers:
                asker.join()
        assert replies == [200] * 10
        for _ in range(200):  # the rest drains after the last answer
            if len(loaded := app.state.alora_loader._reader._weights) == 2:
                break
            client.get("/v1/guard/health")
    assert len(answers) > 4
    for verdict in answers:
        assert verdict["status"] == "ok"
        assert verdict["probability"] == pytest.approx(wanted[verdict["adapter"]], abs=1e-6)
    assert len({verdict["adapter"] for verdict in answers}) > 1
    assert set(loaded) == {Served.of(load_bundle(root / name)).name for name in ("v8", "refunds")}


def wait_for(reached):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def lose(root):
    (root / "v7").rename(root / "elsewhere")
    return lambda: (root / "elsewhere").rename(root / "v7")


def cut(root):
    content = (root / FILE).read_bytes()
    (root / FILE).write_bytes(content[:-9])
    return lambda: (root / FILE).write_bytes(content)


@pytest.mark.parametrize("damage", [lose, cut])
def test_after_a_restart_nothing_is_served_in_place_of_a_set_that_cannot_be_followed(
    client, base, root, damage, monkeypatch
):
    monkeypatch.setattr(loading, "_PAUSE_S", 0.01)
    assert put(client, "v7").status_code == 200
    wanted = client.get("/v1/guard/policies").json()
    mend = damage(root)
    with running(base, root) as restarted:
        for _ in range(3):
            answer = restarted.get("/v1/guard/health")
            assert (answer.status_code, "v7" in answer.text or FILE in answer.text) == (503, True)
            assert restarted.post("/v1/guard", json={"messages": MESSAGES}).status_code == 503
            assert put(restarted, "v8").status_code == 503
        mend()
        wait_for(lambda: restarted.get("/v1/guard/health").status_code == 200)
        assert restarted.get("/v1/guard/policies").json() == wanted
        assert restarted.get("/v1/guard/health").json() == {"status": "ready", "policies": 2}


def replace_set(root, entries):
    assert ServingSet(root).write(tuple(entries)) is not None


def set_of_another_process(root):
    """``advice`` from a folder that is not there yet, and a tag."""
    entries = [
        loading._entry(load_bundle(root / "v7"), "later"),
        replace(loading._entry(load_bundle(root / "refunds"), "refunds"), tags=("eu",)),
    ]
    replace_set(root, entries)


def trouble(client):
    answer = client.get("/v1/guard/health")
    assert answer.status_code == 200
    return answer.json().get("trouble", "")


def test_a_set_that_cannot_be_followed_is_tried_again(client, root, monkeypatch, caplog):
    monkeypatch.setattr(loading, "_PAUSE_S", 0.01)
    before = client.get("/v1/guard/policies").json()
    set_of_another_process(root)
    wait_for(lambda: "later" in trouble(client))
    assert client.get("/v1/guard/policies").json() == before
    wait_for(lambda: trouble(client) and caplog.text.count("is not followed") > 2)  # a request tries again
    shutil.copytree(root / "v7", root / "later")
    wait_for(lambda: verdicts(client)["advice"]["adapter"] == Served.of(load_bundle(root / "v7")).name)
    assert trouble(client) == ""


def test_a_change_by_another_process_meanwhile_is_kept(client, root):
    """Certification takes seconds; both administrators were told that their change is served."""
    entries = [replace(loading._entry(load_bundle(root / name), name), tags=("eu",)) for name in ("advice", "refunds")]
    with ThreadPoolExecutor(1) as pool:
        with FileLock(root / f".{FILE}.lock"):
            putting = pool.submit(put, client, "v7")
            replace_set(root, entries)
        assert putting.result().status_code == 200
    kept = {entry.policy: (entry.bundle, entry.tags) for entry in ServingSet(root).read()}
    assert kept == {"advice": ("v7", ("eu",)), "refunds": ("refunds", ("eu",))}
    tags = {card["policy"]: card["tags"] for card in client.get("/v1/guard/policies").json()["policies"]}
    assert tags == {"advice": ["eu"], "refunds": ["eu"]}
