"""The guard before a server of its own: what that server must show, and what happens when it is gone."""

import asyncio
import re
import subprocess
import sys
import time

import pytest
from fastapi.testclient import TestClient

from alora.bundle.light import read_bundle
from alora.errors import ConfigError
from alora.guard.loading import make_guard
from alora.guard.reader import Overloaded, Served
from alora.guard.remote import RemoteReader, longest_prompt
from alora.guard.standalone import make_app
from alora.serving import servers
from alora.serving.client import RemoteEngine
from tests.integration.guard.conftest import MESSAGES
from tests.integration.serving.server import serving


@pytest.fixture
def server(base, bundles):
    with serving(base, bundles) as running:
        yield running


@pytest.fixture
def app(server, base, bundles):
    light = [read_bundle(bundle.folder) for bundle in bundles]
    reader = RemoteReader([server.url], light, light[0].renderer(base))
    return make_app(*make_guard(light, base, "bfloat16", reader, longest_prompt([server.url]), read_bundle))


def ask(client, **fields):
    return client.post("/v1/guard", json={"messages": MESSAGES, **fields})


def test_it_is_ready_after_every_policy_gave_its_golden_answer(app, bundles):
    with TestClient(app) as client:
        assert client.get("/v1/guard/health").json() == {"status": "ready", "policies": 2}
        assert ask(client).json()["complete"] is True


@pytest.mark.parametrize("fault", ["unplugged", "raw_logprobs", "another"])
def test_a_server_that_computes_otherwise_is_never_ready(app, server, bundles, fault):
    name = bundles[1].served_name
    if fault == "unplugged":
        server.unplugged.add(name)
    elif fault == "another":
        server.bundles[name] = bundles[0]
    else:
        server.raw_logprobs = True
    with TestClient(app) as client:
        for _ in range(2):
            assert client.get("/v1/guard/health").status_code == 503
            assert ask(client).status_code == 503


@pytest.mark.parametrize("words", ["is currently busy and cannot accept new requests.", "prefill token backlog limit."])
def test_a_full_queue_of_vllm_is_429_and_costs_no_check(app, server, words):
    """vLLM says it with 503, as a proxy before a dead server does."""
    with TestClient(app) as client:
        assert ask(client).status_code == 200
        right, asked = server.answer, []

        def full(path, body):
            if "completions" not in path:
                return right(path, body)
            asked.append(body)
            return 503, {"error": {"message": f"The engine {words} Please try again later", "code": 503}}

        server.answer = full
        assert [ask(client).status_code for _ in range(3)] == [429] * 3
        assert client.get("/v1/guard/health").status_code == 200
        assert all("vllm_xargs" in body for body in asked), "golden rows name no weights"
        server.answer = right
        assert ask(client).json()["complete"] is True


@pytest.mark.parametrize("away", ["no answer", "a proxy's 502"])
def test_a_server_that_was_away_must_show_again_what_it_is(app, server, away):
    with TestClient(app) as client:
        assert ask(client).json()["complete"] is True
        right = server.answer
        # None: its handler fails, and the connection ends
        server.answer = None if away == "no answer" else lambda path, body: (502, {"error": "bad gateway"})
        answer = ask(client)
        assert answer.status_code == 503 or (answer.json()["action"], answer.json()["complete"]) == ("block", False)
        server.answer = right
        server.unplugged.update(server.bundles)  # it comes back without the plugin
        answer = ask(client).json()
        assert (answer["action"], answer["complete"]) == ("block", False)
        assert {verdict["status"] for verdict in answer["verdicts"]} == {"failed"}
        server.unplugged.clear()
        assert ask(client).json()["complete"] is True


def test_health_says_that_no_server_answers_until_one_does(app, server, monkeypatch):
    monkeypatch.setattr(servers, "_EVERY_S", 0.01)
    right = server.answer
    with TestClient(app) as client:
        assert ask(client).status_code == 200
        server.answer = lambda path, body: (502, {"error": {"message": "bad gateway"}})
        assert ask(client).status_code == 503
        health = client.get("/v1/guard/health")
        assert (health.status_code, "none of the servers answers" in health.text) == (503, True)
        server.answer = right
        end = time.monotonic() + 60
        while client.get("/v1/guard/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_salt_and_priority_reach_the_server(app, server):
    seen = []
    right = server.answer

    def answer(path, body):
        seen.append((body.get("cache_salt"), body.get("priority")))
        return right(path, body)

    with TestClient(app) as client:
        server.answer = answer
        ask(client, cache_salt="tenant", priority=3)
        ask(client)
    salt = seen[0][0]
    assert salt not in (None, "tenant")
    assert seen == [(salt, 3)] * 2 + [(None, None)] * 2


@pytest.mark.parametrize("salt", ["me@example.org", "org/team", "a\\b", "\0", "x" * 256])
def test_a_salt_is_sent_in_letters_that_vllm_takes(app, server, salt):
    seen, right = set(), server.answer

    def answer(path, body):
        given = body.get("cache_salt", "none")
        if not re.fullmatch(r"[^@/\\\0]{1,128}", given):  # vLLM 0.32: validate_cache_salt
            return 400, {"error": {"message": "cache_salt must be at most 128 characters"}}
        seen.add(given)
        return right(path, body)

    with TestClient(app) as client:
        server.answer = answer
        for one in (salt, "another"):
            assert ask(client, cache_salt=one).json()["complete"] is True
    assert len(seen) == 2


def test_deadlines_that_are_shorter_than_the_verification_do_not_put_it_off_for_ever(app, server, monkeypatch):
    monkeypatch.setattr(servers, "_EVERY_S", 0.01)
    right = server.answer

    def slow(path, body):
        time.sleep(0.2)
        return right(path, body)

    with TestClient(app) as client:
        server.answer = lambda path, body: (502, {"error": {"message": "bad gateway"}})
        assert ask(client).status_code == 503
        server.answer = slow  # three requests of 0.2 s verify it, and one answers
        end = time.monotonic() + 60
        while (answer := ask(client, deadline_ms=450)).status_code != 200 or not answer.json()["complete"]:
            assert time.monotonic() < end


def test_a_server_that_is_forgotten_while_two_verify_it_costs_neither_its_answer(server, base, bundles):
    """The watcher forgets from a thread of its own, at any moment: before a task's first step, and after."""
    light, renderer = read_bundle(bundles[0].folder), bundles[0].renderer(base)

    async def race():
        engine = RemoteEngine(server.url, renderer)
        first = asyncio.ensure_future(engine.verify([light]))
        await asyncio.sleep(0)  # its verification is there, and has not begun
        engine.forget()
        second = asyncio.ensure_future(engine.verify([light]))
        await asyncio.sleep(0)
        engine.forget()
        try:
            return await asyncio.gather(first, second, engine.verify([light]), return_exceptions=True)
        finally:
            await engine.close()

    assert asyncio.run(race()) == [None] * 3


def test_an_adapter_that_answers_otherwise_costs_its_own_verdict_alone(app, server, bundles, monkeypatch):
    monkeypatch.setattr(servers, "_EVERY_S", 3600)
    right, wrong = server.answer, bundles[1]
    with TestClient(app) as client:
        # It goes for a moment, so that all is verified again, and comes back with another adapter under one's name.
        server.answer = lambda path, body: (502, {"error": {"message": "bad gateway"}})
        assert ask(client).status_code == 503
        server.answer, server.bundles[wrong.served_name] = right, bundles[0]
        for _ in range(2):
            found = {verdict["policy"]: verdict["status"] for verdict in ask(client).json()["verdicts"]}
            assert found == {bundles[0].policy.id: "ok", wrong.policy.id: "failed"}
        client.app.state.alora_guard._reader._servers._away.clear()  # as the watcher does, for the server is up
        ask(client)
        assert client.get("/v1/guard/health").status_code == 200


def test_health_says_which_adapters_no_server_gives(app, server, bundles):
    with TestClient(app) as client:
        assert ask(client).json()["complete"] is True
        lost = bundles[1].served_name
        there = server.bundles.pop(lost)  # vLLM was restarted, and loaded it while it ran
        client.app.state.alora_guard._reader._engines[server.url].forget()
        assert ask(client).json()["complete"] is False
        health = client.get("/v1/guard/health").json()
        assert health["status"] == "ready"
        assert health["trouble"].startswith(f"no server gave an answer of {lost} when it was asked last; {lost}: ")
        server.bundles[lost] = there
        assert ask(client).json()["complete"] is True
        assert "trouble" not in client.get("/v1/guard/health").json()


def test_an_adapter_is_loaded_though_one_server_is_full(server, base, bundles):
    bundle = bundles[0]
    busy = {"error": {"message": "The engine is currently busy and cannot accept new requests."}}

    async def load(full):
        reader = RemoteReader([full.url, server.url], [], bundle.renderer(base))
        try:
            await reader.load(Served.of(bundle), bundle)
        finally:
            reader._servers.close()
            for engine in reader._engines.values():
                await engine.close()

    with serving(base, bundles) as full:
        right = full.answer
        full.answer = lambda path, body: (503, busy) if "completions" in path else right(path, body)
        asyncio.run(load(full))
        server.answer = full.answer
        with pytest.raises(Overloaded, match="cannot accept new requests"):
            asyncio.run(load(full))


def test_what_the_server_takes_is_asked_of_it(server):
    assert longest_prompt([server.url]) is None  # it does not say
    server.answer = lambda path, body: (200, {"data": [{"id": "a", "max_model_len": 512}, {"id": "b"}]})
    assert longest_prompt([server.url]) == longest_prompt(["http://127.0.0.1:1", server.url]) == 511
    with pytest.raises(ConfigError, match="does not answer"):
        longest_prompt(["http://127.0.0.1:1"])


def test_it_needs_no_torch():
    code = (
        "import sys, alora.guard.remote, alora.guard.loading, alora.guard.standalone; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
