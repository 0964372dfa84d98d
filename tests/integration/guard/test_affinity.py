"""Several guards: a conversation stays with one, moves when that one is gone, and no request is lost on the way."""

import asyncio
import socket
import threading
import time
from collections import defaultdict

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

import alora
from alora.errors import ConfigError
from alora.guard.standalone import make_app
from alora.serving.servers import Servers, session_id

CONVERSATIONS, TURNS = 24, 4


class Running:
    """Guards on ports of their own, and which conversation came to which."""

    def __init__(self, guard, count: int) -> None:
        self.seen: dict[str, set[str]] = defaultdict(set)  # conversation → servers
        self.busy: set[str] = set()
        self.unhealthy: set[str] = set()
        self._servers = {}
        for _ in range(count):
            server = uvicorn.Server(uvicorn.Config(self._watched(make_app(guard)), port=0, log_level="error"))
            thread = threading.Thread(target=server.run)
            thread.start()
            while not server.started:
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            self._servers[f"http://127.0.0.1:{port}"] = server, thread

    @property
    def urls(self) -> list[str]:
        return list(self._servers)

    def _watched(self, app: FastAPI) -> FastAPI:
        @app.middleware("http")
        async def watch(request: Request, call_next):
            url = str(request.base_url).rstrip("/")
            if request.url.path == "/v1/guard/health":
                return Response(status_code=503 if url in self.unhealthy else 200)
            if url in self.busy:
                return Response(status_code=429)
            self.seen[request.headers["x-session-id"]].add(url)
            return await call_next(request)

        return app

    def stop(self, url: str) -> None:
        server, thread = self._servers[url]
        server.should_exit = server.force_exit = True
        thread.join()

    def stop_all(self) -> None:
        for url in self._servers:
            self.stop(url)


@pytest.fixture
def running(guard, monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    three = Running(guard, 3)
    yield three
    three.stop_all()


def turns(number: int) -> list[dict]:
    return [{"role": ("user", "assistant")[turn % 2], "content": f"{number}: turn {turn}"} for turn in range(TURNS)]


def ask_all(client: alora.Guard) -> None:
    for turn in range(1, TURNS + 1):
        for number in range(CONVERSATIONS):
            assert client.check(turns(number)[:turn]).complete


def home(running: Running) -> dict[str, str]:
    """Where each conversation has been, which must be one place."""
    assert {len(servers) for servers in running.seen.values()} == {1}
    return {session: next(iter(servers)) for session, servers in running.seen.items()}


def test_each_conversation_stays_and_only_those_of_a_dead_server_move(running):
    with alora.Guard(running.urls) as client:
        ask_all(client)
        before = home(running)
        assert len(before) == CONVERSATIONS
        assert set(before.values()) == set(running.urls)
        gone = running.urls[0]
        running.stop(gone)
        running.seen.clear()
        ask_all(client)  # every request is answered
        after = home(running)
    assert gone not in after.values()
    assert {session for session in before if before[session] != after[session]} == {
        session for session, server in before.items() if server == gone
    }


def test_a_full_server_s_conversations_spill_and_come_back(running):
    with alora.Guard(running.urls) as client:
        ask_all(client)
        before = home(running)
        running.busy.add(running.urls[0])
        running.seen.clear()
        ask_all(client)
        assert running.urls[0] not in home(running).values()
        running.busy.clear()
        running.seen.clear()
        ask_all(client)
        assert home(running) == before


def test_asynchronous_clients_agree_with_each_other(running):
    async def ask() -> None:
        async with alora.AsyncGuard(running.urls[::-1]) as client:
            for number in range(CONVERSATIONS):  # in turn: the three servers here share a reader, and have a loop each
                await client.check(turns(number))

    with alora.Guard(running.urls) as client:
        ask_all(client)
    asyncio.run(ask())
    home(running)


def test_nobody_there_is_an_error():
    with (
        alora.Guard(["http://127.0.0.1:1", "http://127.0.0.1:2"]) as client,
        pytest.raises(ConfigError, match="answer"),
    ):
        client.check(turns(0))
    with pytest.raises(ConfigError, match="no guard is given"):
        alora.Guard([])


def wait_for(reached) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_health_is_asked_for_and_not_found_out_by_requests(running, monkeypatch):
    """A server that hangs would cost each of its conversations a time-out; one that drains, a failed request."""
    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.02)
    monkeypatch.setattr("alora.serving.servers._PROBE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as hangs, alora.Guard(running.urls) as client:
        deaf = f"http://127.0.0.1:{hangs.getsockname()[1]}"
        ask_all(client)
        before = home(running)
        draining = running.urls[0]
        running.unhealthy.add(draining)
        wait_for(lambda: client._wait.resource._servers._away == {draining})
        running.seen.clear()
        ask_all(client)
        after = home(running)
        assert {session for session in before if before[session] != after[session]} == {
            session for session, server in before.items() if server == draining
        }
        assert draining not in after.values()
        running.unhealthy.clear()
        wait_for(lambda: not client._wait.resource._servers._away)
        with alora.Guard([deaf, *running.urls]) as other:
            other._wait.resource._servers.order("x")  # from the first question on, somebody watches
            wait_for(lambda: other._wait.resource._servers._away == {deaf})
            for number in range(9):  # some of which would wait for it
                assert other.check(turns(number)).complete


def test_a_server_that_failed_stays_last_until_it_is_healthy(running, monkeypatch):
    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.02)
    with alora.Guard(running.urls) as client:
        own, *others = client._wait.resource._servers.order("x")
        running.unhealthy.add(own)
        client._wait.resource._servers.leave(own)
        assert client._wait.resource._servers.order("x") == [*others, own]
        running.unhealthy.clear()
        wait_for(lambda: client._wait.resource._servers.order("x") == [own, *others])


def test_nobody_watches_for_a_client_that_is_gone(monkeypatch):
    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.02)
    for end in (Servers.close, lambda servers: None):
        servers = Servers(["http://127.0.0.1:1", "http://127.0.0.1:2"], "/health")
        servers.order("x")
        watcher = servers._watcher
        assert watcher.is_alive()
        end(servers)
        del servers
        wait_for(lambda watcher=watcher: not watcher.is_alive())
    alone = Servers(["http://127.0.0.1:1"], "/health")
    alone.order("x")
    assert not alone._watcher.is_alive()


def test_the_session_is_that_of_tenant_and_opening():
    first, second = turns(0)[:2]
    system = {"role": "system", "content": "Be kind."}  # which all conversations of an app begin with
    for same in (system, system | {"role": "developer"}, {"from": "system", "value": "Be kind."}):
        assert session_id([same, first]) != session_id([same, turns(1)[0]])
    assert session_id([system, first]) == session_id([system, first, second])
    assert session_id([first]) == session_id([first, second])
    assert len({session_id([first]), session_id([second]), session_id([first], "tenant")}) == 3
    assert first["content"] not in session_id([first])
    assert session_id([]) == session_id([])
    assert session_id([{"role": "user", "content": "\ud800"}])


def test_servers_share_conversations_evenly_and_a_new_one_takes_only_its_own():
    urls = [f"http://guard-{number}" for number in range(4)]
    three, four = Servers(urls[:3], "/health"), Servers(urls, "/health")
    homes = {str(number): three.order(str(number))[0] for number in range(3000)}
    counts = [list(homes.values()).count(url) for url in urls[:3]]
    assert min(counts) > 900
    moved = {session for session in homes if four.order(session)[0] != homes[session]}
    assert all(four.order(session)[0] == urls[3] for session in moved)
    assert 600 < len(moved) < 900
