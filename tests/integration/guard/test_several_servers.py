"""The guard before several servers: a session stays with one, moves when that is gone, and no request is lost."""

import shutil
import socket
import threading
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from alora.bundle.light import read_bundle
from alora.cli import main
from alora.config.secrets import KEY
from alora.guard import connection
from alora.guard.loading import make_guard
from alora.guard.remote import RemoteReader, longest_prompt
from alora.guard.standalone import make_app
from tests.integration.guard.conftest import listening
from tests.integration.serving.server import Server, serving
from tests.toy_recipe import toy_base_folder

NUMBERS, TURNS = range(10), 2
_TOPS = {}  # what the servers computed: they all compute alike


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    compute = Server.top

    def top(self, bundle, ids, start, body):
        if (known := (bundle.served_name, ids)) not in _TOPS:
            _TOPS[known] = compute(self, bundle, ids, start, body)
        return _TOPS[known]

    monkeypatch.setattr(Server, "top", top)


@pytest.fixture
def servers(base, bundles):
    """Three of them, and what ends one."""
    with ExitStack() as all_three:
        ends = [all_three.enter_context(ExitStack()) for _ in range(3)]
        yield {server.url: (server, end) for end in ends for server in [end.enter_context(serving(base, bundles))]}


@pytest.fixture
def light(bundles, tmp_path):
    """The bundles in a folder that a test may write the serving set to."""
    return [read_bundle(shutil.copytree(bundle.folder, tmp_path / bundle.folder.name)) for bundle in bundles]


@pytest.fixture
def reader(servers, base, light):
    reader = RemoteReader(list(servers), light, light[0].renderer(base))
    yield reader
    reader._servers.close()


@pytest.fixture
def client(servers, reader, base, light):
    guard, loader = make_guard(light, base, "bfloat16", reader, longest_prompt(list(servers)), read_bundle)
    with TestClient(make_app(guard, loader)) as client:
        yield client


def ask(client, number, turn=1, **headers):
    talk = [{"role": ("user", "assistant")[at % 2], "content": f"{number}: turn {at}"} for at in range(turn)]
    return client.post("/v1/guard", json={"messages": talk, "policies": ["advice"]}, headers=headers)


def homes(client, servers):
    """Where each session was answered in all its turns, which must be one place."""
    for server, _ in servers.values():
        server.sessions.clear()
    for turn in range(1, TURNS + 1):
        for number in NUMBERS:
            assert ask(client, number, turn).json()["complete"]
    found = {session: [url for url, (server, _) in servers.items() if session in server.sessions]
             for server, _ in servers.values() for session in server.sessions}  # fmt: skip
    ours = {session: where[0] for session, where in found.items() if len(where) == 1}
    assert len(ours) == len(found)
    return ours


def wait_for(reached):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def moved(before, after):
    return {session for session in before if before[session] != after[session]}


def test_a_session_stays_and_only_those_of_a_dead_server_move(client, servers):
    before = homes(client, servers)
    assert len(before) == len(NUMBERS)
    assert len(set(before.values())) > 1
    gone = next(iter(before.values()))
    servers[gone][1].close()
    after = homes(client, servers)  # every request is answered
    assert moved(before, after) == {session for session, url in before.items() if url == gone}


def test_a_server_that_is_killed_in_mid_request_loses_none(client, servers):
    before = homes(client, servers)
    gone = next(iter(before.values()))
    begun, right = threading.Event(), servers[gone][0].answer

    def never(path, body):
        if path == "/v1/models":
            return right(path, body)
        begun.set()
        raise ConnectionAbortedError  # the connection ends without an answer

    servers[gone][0].answer = never
    after = homes(client, servers)
    assert begun.is_set()
    assert moved(before, after) == {session for session, url in before.items() if url == gone}


def test_a_full_server_s_sessions_spill_and_come_back_at_once(client, servers, reader):
    before = homes(client, servers)
    full = next(iter(before.values()))
    right = servers[full][0].answer
    servers[full][0].answer = lambda path, body: (429, {}) if "completions" in path else right(path, body)
    assert full not in homes(client, servers).values()
    assert reader._servers._away == set()
    servers[full][0].answer = right
    assert homes(client, servers) == before
    for server, _ in servers.values():
        server.answer = lambda path, body: (429, {})
    assert ask(client, 0).status_code == 429


def test_the_callers_session_counts(client, servers):
    for name in ("ours", "\u00fc".encode(), "x" * 5000):
        for server, _ in servers.values():
            server.sessions.clear()
        for number in NUMBERS:
            assert ask(client, number, **{"x-session-id": name}).json()["complete"]
        assert sum(len(server.sessions) for server, _ in servers.values()) == 1


def test_one_that_comes_back_as_another_is_asked_no_more(client, servers, reader, monkeypatch):
    """Nobody asked it while it was away: the watch alone knows."""
    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.05)
    before = homes(client, servers)
    other = next(iter(before.values()))
    server = servers[other][0]
    right, server.answer = server.answer, lambda path, body: (503, {})
    wait_for(lambda: reader._servers._away == {other})
    server.unplugged.update(server.bundles)
    server.answer = right
    wait_for(lambda: not reader._servers._away)
    assert other not in homes(client, servers).values()


def test_the_watch_is_kept_on_one_alone(base, bundles, light, monkeypatch):
    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.05)
    with serving(base, bundles) as server:
        reader = RemoteReader([server.url], light, light[0].renderer(base))
        guard, loader = make_guard(light, base, "bfloat16", reader, None, read_bundle)
        with TestClient(make_app(guard, loader)) as client:
            assert ask(client, 0).json()["complete"]
            right, server.answer = server.answer, lambda path, body: (503, {})
            wait_for(lambda: reader._servers._away)
            server.unplugged.update(server.bundles)
            server.answer = right
            wait_for(lambda: not reader._servers._away)
            answer = ask(client, 0).json()
            assert (answer["action"], answer["complete"]) == ("block", False)
        reader._servers.close()


def test_a_policy_must_be_on_every_server_that_answers(client, servers, reader, bundles, monkeypatch):
    monkeypatch.setenv("ALORA_ADMIN_KEY", "admin")
    first, second, third = servers.values()
    second[1].close()

    def put():
        body = {"bundle": bundles[1].folder.name}
        return client.put("/v1/guard/policies/refunds", json=body, headers={"X-Alora-Admin-Key": "admin"}).status_code

    client.delete("/v1/guard/policies/refunds", headers={"X-Alora-Admin-Key": "admin"})
    for engine in reader._engines.values():
        engine.forget()
    del third[0].bundles[bundles[1].served_name]
    assert put() == 409
    third[0].bundles.update(first[0].bundles)
    assert put() == 200
    rights = {id(server): server.answer for server, _ in (first, third)}
    for full, status in (([third], 200), ([first, third], 429)):
        client.delete("/v1/guard/policies/refunds", headers={"X-Alora-Admin-Key": "admin"})
        for engine in reader._engines.values():
            engine.forget()
        for server, _ in full:
            right = rights[id(server)]
            server.answer = lambda path, body, right=right: (429, {}) if "completions" in path else right(path, body)
        assert put() == status


def test_serve_takes_a_list_of_them(servers, light, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(connection, "MOST_SECONDS", 1.0)

    def run(app, **options):
        with TestClient(app) as client:
            assert client.get("/v1/guard/health").status_code == 200
            assert len(homes(client, servers)) == len(NUMBERS)
        with listening(app, **options) as url, socket.create_connection(urlsplit(url).netloc.split(":")) as endless:
            endless.sendall(b"GET /v1/guard/health HTTP/1.1\r\nX: " + b"a" * 2**17)
            assert endless.recv(20).startswith(b"HTTP/1.1 4")  # a header without end is not read to it
        with listening(app, **options) as url, socket.create_connection(urlsplit(url).netloc.split(":"), 30) as silent:
            assert silent.recv(20) == b""  # nor waited for

    monkeypatch.setattr("uvicorn.run", run)
    asked = [
        "serve",
        f"bundles=[{light[0].folder},{light[1].folder}]",
        f"base.source={toy_base_folder(tmp_path / 'base')}",
    ]
    assert main([*asked, f"serving.scorer=[{','.join(servers)}]"]) == 0
    capsys.readouterr()
    for wrong in ("[vllm,http://h:1]", "[http://h:1,h:2]", "null", "[]", "3", "[[http://h:1]]", "{a: b}"):
        assert main([*asked, f"serving.scorer={wrong}"]) == 2
        assert "serving.scorer" in capsys.readouterr().err
