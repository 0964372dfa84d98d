"""Several guards: a conversation stays with one, moves when that one is gone, and no request is lost on the way."""

import threading
import time
from collections import defaultdict

import pytest
import uvicorn
from fastapi import FastAPI, Request

import alora
from alora.guard.standalone import make_app

CONVERSATIONS, TURNS = 24, 4


class Running:
    """Guards on ports of their own, and which conversation came to which."""

    def __init__(self, guard, count: int) -> None:
        self.seen: dict[str, set[str]] = defaultdict(set)  # conversation → servers
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
