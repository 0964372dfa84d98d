"""Which server a conversation belongs to, and who is asked last."""

import asyncio
import socket
import time
from types import SimpleNamespace

import pytest

from alora.errors import CheckFailed
from alora.http import Full, Http, Unreachable, refusal
from alora.serving.servers import Servers, session_id

SYSTEM, FIRST, OTHER = ({"role": role, "content": text} for role, text in
                        (("system", "Be kind."), ("user", "Hi"), ("user", "Hello")))  # fmt: skip
URLS = ["http://a", "http://b", "http://c"]


def unanswered() -> Unreachable:
    error = Unreachable("no whole answer")
    error.silent = True
    return error


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


@pytest.mark.parametrize("others", [Unreachable("gone"), CheckFailed("another adapter")])
def test_one_that_is_full_says_more_than_others_that_cannot_answer(others, servers, caplog):
    own, *rest = servers.order("session")
    asked: list[str] = []

    async def ask(url):
        asked.append(url)
        raise Full("later") if url == own else others

    for url in rest:
        servers.leave(url)
    with pytest.raises(Full, match="later") as raised:
        asyncio.run(servers.first("session", ask))
    assert asked == [own], "the others are known to be away"
    assert raised.value.__cause__ is None, "of itself, it would be a chain without end"
    servers._away.clear()
    with pytest.raises(Full, match="later"):
        asyncio.run(servers.first("session", ask))
    assert f"cannot answer: {others}" in caplog.text


def test_the_only_server_that_hangs_is_left_where_somebody_watches(monkeypatch):
    monkeypatch.setattr("alora.serving.servers._watch", lambda *_: None)
    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.01)
    only = Servers(["http://a"], "/health", lost=lambda url: None)
    only._silent["http://a"] = time.monotonic() - 60

    async def ask(url):
        await asyncio.sleep(60)

    with pytest.raises(Unreachable, match="http://a hangs: /health has no answer"):
        asyncio.run(only.first("session", ask))


def test_what_one_that_hangs_was_asked_goes_to_the_next(servers, monkeypatch):
    """A machine without power closes no connection; one that is busy answers in the end."""
    own, second, _ = servers.order("session")
    health: dict[str, object] = dict.fromkeys(URLS, 200)

    class Asked:
        async def send(self, url, body, seconds):
            if isinstance(error := health[url.removesuffix("/health")], Exception):
                raise error
            return error, ""

    monkeypatch.setattr("alora.serving.servers._EVERY_S", 0.01)
    ended: list[str] = []

    async def answered(trouble, again, hangs):
        """Who answers while the health of the first one is ``trouble``, and, a minute later, ``again``."""
        done = asyncio.Event()

        async def ask(url):
            try:
                if url == own:
                    await asyncio.wait_for(done.wait(), 60)
            finally:
                ended.append(url)
            return url

        asked = asyncio.ensure_future(servers.first("session", ask))
        await asyncio.sleep(0)
        health[own] = trouble
        await servers.ask_health(Asked())
        servers._silent = {url: since - 60 for url, since in servers._silent.items()}
        health[own] = again
        await servers.ask_health(Asked())
        await asyncio.sleep(0.1)  # several looks at how long it is silent
        if not hangs:
            done.set()
        return await asked

    silent, refused, no_route = unanswered(), Unreachable("refused"), Unreachable("no route to host")
    refused.__cause__ = ConnectionRefusedError()
    for trouble, again, answers in (
        (503, 503, own),
        (silent, 503, own),
        (silent, 200, own),
        (silent, refused, own),  # it is being started again
        (silent, silent, second),
        (silent, no_route, second),
    ):
        health[own] = 200
        asyncio.run(servers.ask_health(Asked()))
        assert asyncio.run(answered(trouble, again, answers == second)) == answers
    assert (ended.count(own), ended.count(second)) == (6, 2)


def test_one_that_hung_and_refuses_a_connection_now_is_being_started_again(monkeypatch):
    """By real connections: what httpx2 raises has its reason behind it in several ways."""
    monkeypatch.setattr("alora.serving.servers._PROBE_S", 0.2)

    async def silent_after_it_hung_and_after_it_refused(host):
        http = Http()
        with socket.create_server(("127.0.0.1", 0)) as hanging:  # nobody accepts what it lets in
            url = f"http://{host}:{hanging.getsockname()[1]}"
            servers = Servers([url], "/health")
            await servers.ask_health(http)
            hung = [*servers._silent]
        await servers.ask_health(http)
        await http.close()
        return [url] == hung, [*servers._silent]

    for host in ("127.0.0.1", "localhost"):
        assert asyncio.run(silent_after_it_hung_and_after_it_refused(host)) == (True, [])


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


def test_one_that_leaves_a_request_without_an_answer_gets_one_at_a_time_until_it_answers(servers, monkeypatch):
    """Its front end is healthy: the engine behind it may hang."""
    monkeypatch.setattr("alora.serving.servers._watch", lambda *_: None)
    own, second, _ = servers.order("session")
    silent, asked = {own}, list[str]()

    class Healthy:
        async def send(self, url, body, seconds):
            return 200, ""

    async def ask(url):
        asked.append(url)
        if url in silent:
            raise unanswered()
        return url

    def first(session="session"):
        asyncio.run(servers.ask_health(Healthy()))
        return asyncio.run(servers.first(session, ask))

    def later(seconds):
        servers._doubted = {url: again - seconds for url, again in servers._doubted.items()}

    assert [first() for _ in range(3)] == [second] * 3
    assert asked.count(own) == 1, "health alone does not bring the conversation back"
    later(60)
    assert [first() for _ in range(3)] == [second] * 3
    assert asked.count(own) == 2, "one more is tried"
    silent.clear()
    assert first() == second
    later(60)
    assert [first() for _ in range(3)] == [own] * 3
    silent.update(URLS)
    with pytest.raises(Unreachable):
        first()
    assert servers._doubted.keys() == set(URLS)
    asyncio.run(servers.ask_health(Healthy()))
    assert not servers.all_away


def test_one_that_cuts_a_request_short_is_not_doubted_once_it_is_healthy(servers):
    own, second, _ = servers.order("session")

    async def ask(url):
        if url == own:
            raise Unreachable("server disconnected")
        return url

    assert asyncio.run(servers.first("session", ask)) == second
    servers._away.clear()
    assert servers.order("session")[0] == own


def test_one_that_is_full_sends_nobody_to_one_that_is_away_or_doubted_and_all_to_the_next(servers):
    """Those are known to be so after the order was made, as well."""
    own, second, third = servers.order("session")
    asked: list[str] = []

    async def ask(url):
        asked.append(url)
        if url == own:
            servers.leave(second)
            raise Full("later")
        return url

    assert asyncio.run(servers.first("session", ask)) == third
    servers._away.clear()
    servers._doubted = dict.fromkeys((second, third), time.monotonic() + 60)
    with pytest.raises(Full):
        asyncio.run(servers.first("session", ask))
    assert asked == [own, third, own]


def test_a_request_that_is_too_heavy_moves_nobody_from_a_server_that_answers_others(servers):
    own, second, _ = servers.order("session")

    async def both():
        answered = asyncio.Event()

        async def heavy(url):
            if url == own:
                await answered.wait()
                raise unanswered()
            return url

        async def light(url):
            return url

        waiting = asyncio.ensure_future(servers.first("session", heavy))
        await asyncio.sleep(0.01)
        assert await servers.first("session", light) == own
        answered.set()
        return await waiting

    assert asyncio.run(both()) == second
    assert servers.order("session")[0] == own


@pytest.mark.parametrize("says_so", [False, True])
def test_one_that_lets_every_deadline_pass_is_doubted_until_it_answers(says_so, servers, monkeypatch):
    """Whether the deadline ends the request, or the server's answer says that it has passed."""
    own, second, _ = servers.order("session")
    asked, hangs, now = list[str](), {own}, [1000.0]
    monkeypatch.setattr("alora.serving.servers.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def ask(url):
        asked.append(url)
        if url in hangs:
            await asyncio.sleep(0.04 if says_so else 60)
        return "late" if url in hangs else url

    async def within_a_deadline():
        asking = [
            asyncio.ensure_future(servers.first("session", ask, lambda answer: answer != "late")) for _ in range(3)
        ]
        await asyncio.sleep(0.02)
        now[0] += 3  # of a deadline
        await asyncio.wait(asking, timeout=0.06)
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        return "late" if asking[0].cancelled() else asking[0].result()

    def after(seconds):
        now[0] += seconds
        return asyncio.run(within_a_deadline())

    async def listed(url):
        return url

    for _ in range(2):
        assert [after(100) for _ in range(2)] == ["late"] * 2, "it may be busy; when nobody asks, it is silent"
        answer = asyncio.run(servers.first("session", listed, None))  # without the engine
    assert answer == second
    assert [after(1) for _ in range(2)] == [second] * 2
    now[0] += 10
    assert asyncio.run(servers.first("session", listed, None)) == second, "it is not the one that is tried"
    assert after(0) == "late", "one more is tried"
    assert after(1) == second
    hangs.clear()
    assert [after(31), after(1)] == [own] * 2
    hangs.add(own)
    assert after(1) == "late", "it answered a moment ago"
    assert after(1) == "late"


def test_requests_that_are_given_up_move_nobody_from_a_server_that_answers_others(servers, monkeypatch):
    own = servers.order("session")[0]
    now = [1000.0]
    monkeypatch.setattr("alora.serving.servers.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def slow(_):
        await asyncio.sleep(60)

    async def quick(url):
        return url

    async def both():
        given_up = asyncio.ensure_future(servers.first("session", slow))
        await asyncio.sleep(0.01)
        now[0] += 20
        assert await servers.first("session", quick) == own
        given_up.cancel()
        await asyncio.wait({given_up})

    async def listing():
        given_up = asyncio.ensure_future(servers.first("session", slow, None))
        await asyncio.sleep(0.01)
        now[0] += 20
        given_up.cancel()
        await asyncio.wait({given_up})

    asyncio.run(listing())  # by the front end alone
    assert servers.order("session")[0] == own
    for _ in range(3):
        asyncio.run(both())
        now[0] += 20
    assert servers.order("session")[0] == own


def test_what_a_proxy_waited_for_in_vain_is_silence():
    assert [refusal("http://a", status, "").silent for status in (502, 503, 504)] == [False, False, True]
