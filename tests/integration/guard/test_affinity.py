"""Several guards: a conversation stays with one, moves when that one is gone, and no request is lost on the way."""

from collections import defaultdict
from contextlib import ExitStack

import alora
from alora.guard.standalone import make_app
from tests.integration.guard.conftest import listening

CONVERSATIONS, TURNS = 24, 4


def watched(guard, seen):
    """The guard's app, which writes down the sessions that come to its address."""
    app = make_app(guard)

    @app.middleware("http")
    async def watch(request, call_next):
        seen[request.headers["x-session-id"]].add(str(request.base_url).rstrip("/"))
        return await call_next(request)

    return app


def homes(client, seen):
    """Where each conversation has been turn by turn, which must be one place."""
    seen.clear()
    for turn in range(1, TURNS + 1):
        for number in range(CONVERSATIONS):
            talk = [{"role": ("user", "assistant")[at % 2], "content": f"{number}: turn {at}"} for at in range(turn)]
            assert client.check(talk).complete
    assert {len(servers) for servers in seen.values()} == {1}
    return {session: next(iter(servers)) for session, servers in seen.items()}


def test_each_conversation_stays_and_only_those_of_a_dead_server_move(guard, monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    seen = defaultdict(set)
    with ExitStack() as others, ExitStack() as first:
        gone = first.enter_context(listening(watched(guard, seen)))
        urls = [gone, *(others.enter_context(listening(watched(guard, seen))) for _ in range(2))]
        with alora.Guard(urls) as client:
            before = homes(client, seen)
            assert len(before) == CONVERSATIONS
            assert set(before.values()) == set(urls)
            first.close()
            after = homes(client, seen)  # every request is answered
    assert gone not in after.values()
    moved = {session for session in before if before[session] != after[session]}
    assert moved == {session for session, server in before.items() if server == gone}
