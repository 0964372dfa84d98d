"""Which guard a conversation belongs to, and who is asked next."""

import asyncio
from types import SimpleNamespace

import pytest

from alora.client.guard import Failover, session_id
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.transport import Full, Unreachable

SYSTEM, FIRST, OTHER = ({"role": role, "content": text} for role, text in
                        (("system", "Be kind."), ("user", "Hi"), ("user", "Hello")))  # fmt: skip
URLS = ["http://a", "http://b", "http://c"]


def test_a_session_is_of_a_tenant_and_an_opening():
    mine = session_id([SYSTEM, FIRST], "me")
    assert session_id([SYSTEM, FIRST, {"role": "assistant", "content": "Hi"}, OTHER], "me") == mine
    others = [session_id([SYSTEM, FIRST], "you"), session_id([SYSTEM, FIRST]), session_id([SYSTEM, OTHER], "me")]
    assert len({mine, *others}) == 4
    for same in (SYSTEM | {"role": "developer"}, {"from": "system", "value": "Be kind."}):
        assert session_id([same, FIRST]) != session_id([same, OTHER])
    assert FIRST["content"] not in session_id([FIRST])
    assert session_id([]) == session_id([])
    assert session_id([{"role": "user", "content": "\ud800"}])


def test_servers_share_conversations_evenly_and_a_new_one_takes_only_its_own():
    urls = [f"http://guard-{number}" for number in range(4)]
    three, four = Failover(urls[:3]), Failover(urls)
    homes = {str(number): three.order(str(number))[0] for number in range(3000)}
    counts = [list(homes.values()).count(url) for url in urls[:3]]
    assert min(counts) > 900
    moved = {session for session in homes if four.order(session)[0] != homes[session]}
    assert all(four.order(session)[0] == urls[3] for session in moved)
    assert 600 < len(moved) < 900


@pytest.mark.parametrize(
    ("error", "away"),
    [(Full("later"), False), (CheckFailed("another adapter"), False), (Unreachable("gone"), True)],
    ids=["full", "wrong", "gone"],
)
def test_one_that_is_up_keeps_its_conversations_and_one_that_is_gone_comes_last_for_a_while(error, away, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("alora.client.guard.time", SimpleNamespace(monotonic=lambda: now[0]))
    servers = Failover(URLS)
    own, second, third = servers.order("session")

    async def ask(url):
        if url == own:
            raise error
        return url

    assert asyncio.run(servers.first("session", ask)) == second
    assert servers.order("session") == ([second, third, own] if away else [own, second, third])
    now[0] += 31
    assert servers.order("session") == [own, second, third]


@pytest.mark.parametrize("error", [PromptRefused("too long"), ValueError("a bug")])
def test_what_is_no_fault_of_the_server_goes_to_no_other(error):
    servers, asked = Failover(URLS), []

    async def ask(url):
        asked.append(url)
        raise error

    with pytest.raises(type(error)):
        asyncio.run(servers.first("session", ask))
    assert len(asked) == 1


def test_where_none_answers_the_last_one_says_why():
    async def ask(url):
        raise Unreachable(f"{url} is gone")

    servers = Failover(URLS)
    last = servers.order("session")[-1]
    with pytest.raises(ConfigError, match=f"{last} is gone"):
        asyncio.run(servers.first("session", ask))
