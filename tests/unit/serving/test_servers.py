"""Which server a conversation belongs to, and who is asked last."""

import asyncio

import pytest

from alora.errors import CheckFailed
from alora.http import Full, Unreachable
from alora.serving.servers import Servers, session_id

SYSTEM, FIRST, OTHER = ({"role": role, "content": text} for role, text in
                        (("system", "Be kind."), ("user", "Hi"), ("user", "Hello")))  # fmt: skip
URLS = ["http://a", "http://b", "http://c"]


def test_a_session_is_of_a_tenant_and_an_opening():
    mine = session_id([SYSTEM, FIRST], "me")
    assert session_id([SYSTEM, FIRST, {"role": "assistant", "content": "Hi"}, OTHER], "me") == mine
    others = [session_id([SYSTEM, FIRST], "you"), session_id([SYSTEM, FIRST]), session_id([SYSTEM, OTHER], "me")]
    assert len({mine, *others}) == 4


@pytest.fixture
def servers(monkeypatch):
    made = Servers(URLS, "/health")
    made.close()
    monkeypatch.setattr("alora.serving.servers._watch", lambda *_: None)
    return made


@pytest.mark.parametrize(
    ("error", "away"),
    [(Full("later"), False), (CheckFailed("another adapter"), False), (Unreachable("gone"), True)],
    ids=["full", "wrong", "gone"],
)
def test_a_server_that_is_up_keeps_its_conversations_and_one_that_is_gone_does_not(error, away, servers):
    own, second, _ = servers.order("session")

    async def ask(url):
        if url == own:
            raise error
        return url

    assert asyncio.run(servers.first("session", ask)) == second
    assert servers.order("session")[0] == (second if away else own)


def test_one_that_is_healthy_again_has_its_conversations_back(servers):
    own = servers.order("session")[0]
    answers = dict.fromkeys(URLS, 200)

    class Asked:
        async def send(self, url, body, seconds):
            return answers[url.removesuffix("/health")], ""

    answers[own] = 503
    for status, place in ((503, 2), (200, 0)):
        answers[own] = status
        asyncio.run(servers.ask_health(Asked()))
        assert servers.order("session").index(own) == place
        assert not servers.all_away
    for url in URLS:
        servers.leave(url)
    assert servers.all_away
