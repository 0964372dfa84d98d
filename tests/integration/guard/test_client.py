"""``alora.Guard`` and ``alora.AsyncGuard`` against a guard that listens on a port."""

import asyncio

import pytest

import alora
from alora.client.guard import SESSION, session_id
from alora.errors import CheckFailed, ConfigError
from alora.guard.standalone import make_app
from tests.integration.guard.conftest import MESSAGES, listening
from tests.unit.llm.endpoint import endpoint


@pytest.fixture
def url(guard, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with listening(make_app(guard)) as url:
        yield url


def test_sync_and_async_give_the_guards_answer(url, client):
    wanted = client.post("/v1/guard", json={"messages": MESSAGES}, headers={"Authorization": "Bearer secret"}).json()
    with alora.Guard(f"{url}/v1") as guard:
        answer = guard.check(MESSAGES)
        assert [verdict.model_dump() for verdict in answer.verdicts] == wanted["verdicts"]
        assert answer.blocked == (wanted["action"] == "block")
        assert answer.flagged == [verdict["policy"] for verdict in wanted["verdicts"] if verdict["flagged"]]
        (one,) = guard.check(MESSAGES, policies=["refunds"], deadline_ms=10_000).verdicts
        assert one.policy == "refunds"

    async def ask():
        async with alora.AsyncGuard(url) as guard:
            return await asyncio.gather(*(guard.check(MESSAGES) for _ in range(3)))

    assert all(other.verdicts == answer.verdicts for other in asyncio.run(ask()))


def test_no_answer_is_an_error(url, monkeypatch):
    with alora.Guard(url) as guard, pytest.raises(ConfigError, match=r"answered 404.*parcels is not served"):
        guard.check(MESSAGES, policies=["parcels"])
    monkeypatch.delenv("VLLM_API_KEY")
    with alora.Guard(url) as guard, pytest.raises(ConfigError, match="answered 401"):
        guard.check(MESSAGES)
    with alora.Guard("http://127.0.0.1:1") as guard, pytest.raises(ConfigError):
        guard.check(MESSAGES)
    no_guard = pytest.raises(CheckFailed, match="is not a guard")
    with endpoint(lambda *_: {"data": []}) as other, alora.Guard(other.url) as guard, no_guard:
        guard.check(MESSAGES)
    assert other.headers[0][SESSION] == session_id(MESSAGES)


def test_a_guard_that_is_gone_costs_no_request(url):
    with alora.Guard(["http://127.0.0.1:1", url]) as guard:
        assert all(guard.check([{"role": "user", "content": f"Hello {number}"}]).complete for number in range(6))
