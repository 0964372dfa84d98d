"""The client of a server elsewhere: where its key and its text go."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from alora.config.secrets import KEY
from alora.errors import AloraError, CheckFailed, ConfigError, PromptRefused
from alora.http import Full, Unreachable
from alora.prompt.render import Prefix, Suffix
from alora.serving import client
from alora.serving.client import RemoteEngine, together
from alora.serving.completions import Completions
from alora.serving.guard import Guard
from tests.unit.test_http import LONG, SECRET, with_causes


@contextmanager
def server(status: int = 200, location: str | None = None, content: object = None, retry_after: str | None = None):
    """A server that answers everything alike; what reached it."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, dict(self.headers), self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            body = json.dumps({"data": []} if content is None else content).encode()
            self.send_response(status)
            for name, value in (("Location", location), ("Retry-After", retry_after)):
                if value is not None:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}", seen
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, {"prompt": [1, 2]}])
def test_neither_key_nor_text_follows_to_another_place(status, body, monkeypatch):
    monkeypatch.setenv(KEY, "s3cret")
    with server() as (elsewhere, stolen), server(status, f"{elsewhere}/x") as (url, seen):
        with pytest.raises(ConfigError, match=f"answered {status} and redirects to {elsewhere}/x"):
            asyncio.run(Completions(url)._send("/v1/models", body))
        assert stolen == []
        assert seen[0][1]["Authorization"] == "Bearer s3cret"  # the one that was named has both


def test_a_password_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match=KEY) as caught:
        Completions("http://me:s3cret@127.0.0.1:8000")
    assert "s3cret" not in str(caught.value)


SUFFIX = Suffix((5, 6), (5,), (7, 8))
ANSWER = {"choices": [{"logprobs": {"top_logprobs": [{"token_id:7": math.log(0.25), "token_id:8": math.log(0.75)}]}}]}


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 2}}, 2),
        ({"prompt_tokens_details": {"cached_tokens": 10**18}}, 5),
        ({"prompt_tokens_details": {"cached_tokens": -3}}, 0),
        *((usage, 0) for usage in (None, [1], "x", 3, {"prompt_tokens_details": [1]})),
    ],
)
def test_a_wrong_count_of_cached_tokens_costs_no_verdict(usage, cached):
    with server(content=ANSWER | {"usage": usage}) as (url, _):
        logprobs, found = asyncio.run(Completions(url).ask_unverified(Prefix((1, 2, 3)), SUFFIX, "p@0"))
    assert (logprobs, found) == ((math.log(0.25), math.log(0.75)), cached)


@pytest.mark.parametrize("longest", ["10", [1], True, 0, 1.5])
def test_a_length_that_is_none_is_refused(longest):
    model = {"id": "base", "max_model_len": longest}
    with server(content={"data": [model]}) as (url, _), pytest.raises(ConfigError, match="is not an OpenAI-compatible"):
        asyncio.run(Completions(url).models())


@pytest.mark.parametrize(
    ("error", "believed"),
    [
        (Unreachable("gone"), set()),
        (CheckFailed("other tokens"), {"b"}),
        (ConfigError("HTTP 500"), {"b"}),
        (PromptRefused("too long"), {"a", "b"}),
        (Full("later"), {"a", "b"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_who_is_verified_again_after_a_failure(error, believed, monkeypatch):
    """Behind an address that was away there may be another server, with other adapters under every name."""

    async def fails(*_):
        raise error

    async def ask():
        engine, _ = believing(monkeypatch)
        engine._verified, engine._answered = {name: served(name) for name in "ab"}, time.monotonic()
        monkeypatch.setattr(engine, "ask_unverified", fails)
        with pytest.raises(type(error)):
            await engine.ask(Prefix((1,)), served("a"))
        await engine.close()
        return {*engine._verified}

    assert asyncio.run(ask()) == believed


def test_the_first_that_fails_ends_the_others():
    """vLLM aborts a request that nobody waits for."""
    ended = []

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fails():
        raise ConfigError("gone")

    async def both():
        with pytest.raises(ConfigError, match="gone"):
            await together([waits(), fails()])
        await asyncio.sleep(0)
        return list(ended)

    assert asyncio.run(both()) == [True]


def served(name: str, activated: bool = True, rows: int = 1) -> Any:
    facts = {"manifest": SimpleNamespace(activated=activated), "golden": (None,) * rows, "folder": name}
    return SimpleNamespace(served_name=name, served_weights="", suffix=SUFFIX, **facts)


def believing(monkeypatch, idle_s: float = 2.0) -> tuple[RemoteEngine, list[str]]:
    """A client whose server serves ``a`` and ``b`` and gives their golden answers; and who was verified, in turn."""
    engine, required = RemoteEngine("http://127.0.0.1:9", None, idle_s=idle_s), []  # pyright: ignore[reportArgumentType]

    async def models():
        return {"a": None, "b": None}

    async def require(bundle, rows):
        required.append(bundle.served_name)
        return -0.1, -2.4

    monkeypatch.setattr(engine, "models", models)
    monkeypatch.setattr(engine, "_require", require)
    return engine, required


def verify_in_turn(engine: RemoteEngine, *asked: list[Any]) -> None:
    async def verify():
        async with engine:
            for bundles in asked:
                await engine.verify(bundles)

    asyncio.run(verify())


def test_a_bundle_that_comes_later_is_verified_too_and_the_others_not_again(monkeypatch):
    (engine, required), bundles = believing(monkeypatch), [served("a"), served("b")]
    verify_in_turn(engine, bundles[:1], bundles, bundles)
    assert required == ["a", "b"]


def paused(engine: RemoteEngine) -> None:
    engine._answered = -1e9


def check_by(engine: RemoteEngine, bundles: list[Any], require: Any, monkeypatch: Any, pauses: int = 1) -> list[int]:
    """Verify the bundles, then after each pause by ``require``; how many checks then were under way still."""

    async def verify():
        awaited = []
        async with engine:
            await engine.verify(bundles)
            monkeypatch.setattr(engine, "_require", require)
            for _ in range(pauses):
                paused(engine)
                await asyncio.wait_for(engine.verify(bundles), 30)
                awaited.append(len(engine._checks))
        return awaited

    return asyncio.run(verify())


def test_after_a_pause_an_activated_adapter_is_verified_again(monkeypatch):
    """A plain LoRA answers alike without the plugin, also where it alone is asked for."""
    (engine, required), plain, activated = believing(monkeypatch), served("a", activated=False), served("b")

    async def verify():
        async with engine:
            await engine.verify([plain, activated])
            for bundles in ([plain, activated], [plain], [activated]):
                paused(engine)
                await engine.verify(bundles)

    asyncio.run(verify())
    assert required == ["a", "b", "b", "b", "b"]


@pytest.mark.parametrize(
    ("activated", "wrong", "why"),
    [(True, {"prompt": [0]}, "its invocation tokens [5]"), (False, {"vllm_xargs": {}}, "not the digest of weights")],
)
def test_the_plugin_shows_by_what_it_alone_refuses(activated, wrong, why, monkeypatch):
    (engine, _), bundle, answers = believing(monkeypatch), served("a", activated), []

    async def send(path, body):
        sent.append(body)
        return answers[len(sent) - 1]

    async def require():
        sent.clear()
        async with engine:
            await engine._require_plugin(bundle)

    sent = []
    monkeypatch.setattr(engine, "_send", send)
    for answers in ([(400, f"a: {why}")], [(500, ""), (200, ""), (500, "")]):
        asyncio.run(require())
        assert len(sent) == len(answers)
        assert wrong.keys() <= sent[0].keys()
    for answers in ([(200, "")], [(400, "too long")], [(500, "")] * 3, [(500, ""), (200, ""), (200, "")]):
        with pytest.raises(CheckFailed if answers[0][0] < 500 else ConfigError, match=f"answered {answers[0][0]}"):
            asyncio.run(require())


def test_the_check_goes_to_another_adapter_while_one_is_awaited(monkeypatch):
    """One that hangs is the first to be asked for, and the others must not wait for it."""
    (engine, required), a, b = believing(monkeypatch), served("a"), served("b")
    require = engine._require

    async def hangs(bundle, rows):
        if bundle is a:
            await asyncio.sleep(600)
        return await require(bundle, rows)

    monkeypatch.setattr(client, "_LOST_S", 0.1)
    check_by(engine, [a, b], hangs, monkeypatch, pauses=2)
    assert required == ["a", "b", "b", "b"]


@pytest.mark.parametrize("error", [ConfigError("HTTP 404"), PromptRefused("too long")])
def test_one_adapter_that_fails_after_a_pause_is_its_own_fault(error, monkeypatch):
    """Unloaded, say, or with other files; the others are served on."""
    (engine, required), a, b = believing(monkeypatch), served("a"), served("b")
    require = engine._require

    async def fails(bundle, rows):
        if bundle is a:
            raise error
        return await require(bundle, rows)

    async def verify():
        async with engine:
            await engine.verify([a, b])
            monkeypatch.setattr(engine, "_require", fails)
            paused(engine)
            for _ in range(3):
                asked = [engine.verify([a]), *(engine.verify([b]) for _ in range(3))]
                failed, *rest = await asyncio.gather(*asked, return_exceptions=True)
                assert str(error) in str(failed)
                assert rest == [None] * 3

    asyncio.run(verify())
    assert required == ["a", "b", "b"]


@pytest.mark.parametrize(("error", "believed"), [(Unreachable("gone"), set()), (Full("later"), {"a", "b"})])
def test_a_server_that_was_away_at_the_check_is_verified_anew_and_one_that_is_full_is_not(error, believed, monkeypatch):
    engine, _ = believing(monkeypatch)

    async def fails(*_):
        raise error

    async def verify():
        async with engine:
            await engine.verify([served("a"), served("b")])
            monkeypatch.setattr(engine, "_require", fails)
            paused(engine)
            with pytest.raises(type(error), match=str(error)):
                await engine.verify([served("a")])

    asyncio.run(verify())
    assert {*engine._verified} == believed


@pytest.mark.parametrize("same", [True, False])
def test_an_answer_after_a_pause_counts_once_the_server_has_shown_itself(same, monkeypatch):
    """A queue on the way may keep a request until another server is there."""
    (engine, required), a = believing(monkeypatch, idle_s=0.3), served("a")
    require, sent = engine._require, []

    async def send(path, body, *_):
        sent.append(body)
        await asyncio.sleep(1)
        return 200, json.dumps(ANSWER)

    async def shown(bundle, rows):
        if sent and not same:
            raise CheckFailed("another base")
        return await require(bundle, rows)

    async def ask():
        async with engine:
            return await engine.ask(Prefix((1,)), a)

    monkeypatch.setattr(engine, "_require", shown)
    monkeypatch.setattr(engine._http, "send", send)
    if same:
        assert asyncio.run(ask())[0] == (math.log(0.25), math.log(0.75))
    else:
        with pytest.raises(CheckFailed, match="another base"):
            asyncio.run(ask())
    assert (required, len(sent)) == (["a", "a"] if same else ["a"], 1)


def test_a_check_whose_answer_is_lost_is_made_anew(monkeypatch):
    """By a balancer that lost one connection, say; the server answers everybody else."""
    (engine, required), a, lost = believing(monkeypatch), served("a"), []
    require = engine._require

    async def loses_one(bundle, rows):
        if not lost:
            lost.append(bundle)
            await asyncio.sleep(600)
        return await require(bundle, rows)

    monkeypatch.setattr(client, "_LOST_S", 0.1)
    check_by(engine, [a], loses_one, monkeypatch)
    assert (required, lost) == (["a"] * 2, [a])


def test_one_that_is_slow_at_the_check_counts_when_it_comes(monkeypatch):
    """A busy server takes longer than an answer is waited for: what was begun goes on."""
    (engine, required), a = believing(monkeypatch), served("a")
    require = engine._require

    async def slow(bundle, rows):
        await asyncio.sleep(1)
        return await require(bundle, rows)

    monkeypatch.setattr(client, "_LOST_S", 0.02)
    check_by(engine, [a], slow, monkeypatch)
    assert required[:2] == ["a", "a"]


def test_more_than_wait_for_a_slow_server_ten_times_over_are_answered(monkeypatch):
    """Each wave ends with a pause, after which those that wait let the server show itself and lose no try."""
    (engine, _), a = believing(monkeypatch, idle_s=0.1), served("a")
    engine._free, require = asyncio.Semaphore(1), engine._require

    async def send(*_):
        await asyncio.sleep(0.2)
        return 200, json.dumps(ANSWER)

    async def shown(bundle, rows):
        await asyncio.sleep(0.05)
        return await require(bundle, rows)

    async def ask():
        async with engine:
            monkeypatch.setattr(engine, "_require", shown)
            return await asyncio.gather(*(engine.ask(Prefix((number,)), a) for number in range(15)))

    monkeypatch.setattr(client, "_BEAT_S", 3600)
    monkeypatch.setattr(engine._http, "send", send)
    assert len(asyncio.run(ask())) == 15


def test_a_check_that_passes_makes_the_next_pause_as_short_as_the_first(monkeypatch):
    """However many answers were lost before, and hang still."""
    (engine, required), a, asked = believing(monkeypatch), served("a"), []
    require = engine._require

    async def loses_two(bundle, rows):
        asked.append(bundle)
        if len(asked) == 2:
            monkeypatch.setattr(client, "_LOST_S", 600)
        if len(asked) < 3:
            await asyncio.sleep(600)
        return await require(bundle, rows)

    monkeypatch.setattr(client, "_LOST_S", 0.2)
    assert check_by(engine, [a], loses_two, monkeypatch, pauses=2) == [2, 2]
    assert required == ["a"] * 3


@pytest.mark.parametrize("same", [True, False])
def test_a_refusal_after_a_pause_counts_once_the_server_has_shown_itself(same, monkeypatch):
    """It may be another one's, for what this one would answer."""
    (engine, required), a = believing(monkeypatch, idle_s=0.1), served("a")
    require, sent = engine._require, []

    async def send(*_):
        sent.append(1)
        await asyncio.sleep(0.5)
        return 400, "too long"

    async def shown(bundle, rows):
        if sent and not same:
            raise CheckFailed("another base")
        return await require(bundle, rows)

    async def ask():
        async with engine:
            await engine.ask(Prefix((1,)), a)

    monkeypatch.setattr(engine, "_require", shown)
    monkeypatch.setattr(engine._http, "send", send)
    with pytest.raises(PromptRefused if same else CheckFailed, match="too long" if same else "another base"):
        asyncio.run(ask())
    assert required == (["a", "a"] if same else ["a"])


def test_what_was_lost_long_ago_has_nobody_verified_again(monkeypatch):
    """Its request may end ten minutes after the others' that were lost with it."""
    (engine, required), ended = believing(monkeypatch), asyncio.Event()

    async def lost(*_):
        await ended.wait()
        raise Unreachable("silent")

    async def ask():
        async with engine:
            await engine.verify([served("a"), served("b")])
            monkeypatch.setattr(engine, "ask_unverified", lost)
            old = asyncio.ensure_future(engine.ask(Prefix((1,)), served("a")))
            await asyncio.sleep(0.1)
            engine.forget()
            await engine.verify([served("a"), served("b")])
            ended.set()
            with pytest.raises(Unreachable):
                await old
        return {*engine._verified}

    assert asyncio.run(ask()) == {"a", "b"}
    assert required == ["a", "b"] * 2


def test_a_busy_server_is_asked_again_less_and_less(monkeypatch):
    (engine, _), a, asked = believing(monkeypatch), served("a"), []

    async def hangs(bundle, rows):
        asked.append(bundle)
        await asyncio.sleep(600)

    async def verify():
        async with engine:
            await engine.verify([a])
            monkeypatch.setattr(engine, "_require", hangs)
            monkeypatch.setattr(client, "_LOST_S", 0.1)
            paused(engine)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(engine.verify([a]) for _ in range(20))), 2)

    asyncio.run(verify())
    assert 2 <= len(asked) <= 5  # after 0, 0.1, 0.3, 0.7 and 1.5 s


def test_what_waited_for_its_turn_through_a_pause_goes_to_nobody_unchecked(monkeypatch):
    """Until another request gives up, which says nothing of who is there by now."""
    (engine, required), sent = believing(monkeypatch, idle_s=0.5), []
    engine._free = asyncio.Semaphore(1)

    async def send(path, body, *_):
        sent.append((body["prompt"][0], len(required)))
        if len(sent) == 1:
            await asyncio.sleep(600)
        return 200, json.dumps(ANSWER)

    async def ask():
        async with engine:
            await engine.verify([served("a")])
            hangs = asyncio.ensure_future(engine.ask(Prefix((1,)), served("a")))
            waits = asyncio.ensure_future(engine.ask(Prefix((2,)), served("a")))
            await asyncio.sleep(1)
            hangs.cancel()
            return await asyncio.wait_for(waits, 30)

    monkeypatch.setattr(client, "_BEAT_S", 3600)
    monkeypatch.setattr(engine._http, "send", send)
    assert asyncio.run(ask())[0] == (math.log(0.25), math.log(0.75))
    assert sent == [(1, 1), (2, 2)]  # the second after a second check


def test_after_a_failed_check_every_bundle_is_verified_by_all_its_rows(monkeypatch):
    (engine, _), a, b, asked = believing(monkeypatch), served("a", rows=3), served("b", rows=3), []

    async def other(bundle, rows):
        asked.append((bundle.served_name, len(rows)))
        if len(asked) == 3:
            raise CheckFailed("another base")
        return -0.1, -2.4

    async def verify():
        async with engine:
            monkeypatch.setattr(engine, "_require", other)
            await engine.verify([a, b])
            paused(engine)
            await engine.verify([a, b])

    asyncio.run(verify())
    assert asked == [("a", 3), ("b", 3), ("a", 1), ("a", 3), ("b", 3)]


def test_an_answer_that_is_another_one_has_all_rows_asked_for(monkeypatch):
    (engine, _), a, asked, gave = believing(monkeypatch), served("a", rows=3), [], [-0.1, -0.2, -0.2, -0.2]

    async def varying(bundle, rows):
        asked.append(len(rows))
        return gave[len(asked) - 1], -2.4

    async def verify():
        async with engine:
            monkeypatch.setattr(engine, "_require", varying)
            await engine.verify([a])
            for _ in range(2):
                paused(engine)
                await engine.verify([a])

    asyncio.run(verify())
    assert asked == [3, 1, 3, 1]


def test_a_check_during_which_the_event_loop_stood_still_counts_for_nobody(monkeypatch):
    (engine, required), a, b = believing(monkeypatch, idle_s=0.5), served("a"), served("b")
    require, stood = engine._require, []

    async def late(bundle, rows):
        found = await require(bundle, rows)
        if not stood:
            stood.append(bundle)
            time.sleep(1.5)
            await asyncio.sleep(0.1)
        return found

    async def verify():
        async with engine:
            await engine.verify([a, b])
            await asyncio.sleep(0.6)
            monkeypatch.setattr(engine, "_require", late)
            await asyncio.gather(engine.verify([a]), engine.verify([b]))

    asyncio.run(verify())
    assert required[:2] == ["a", "b"]
    assert len(required) == 4  # once in vain


def test_what_was_on_the_way_while_the_event_loop_stood_still_is_asked_again(monkeypatch):
    """The answers may be read long after they came, and by then another server may be there."""
    (engine, required), asked = believing(monkeypatch, idle_s=0.5), []

    async def send(path, body, *_):
        asked.append(path)
        if len(asked) == 1:
            time.sleep(1.5)  # beats are half a second, and idle_s a half: more than both
            await asyncio.sleep(0.1)
        return 200, json.dumps(ANSWER)

    async def ask():
        async with engine:
            return await engine.ask(Prefix((1,)), served("a"))

    monkeypatch.setattr(engine._http, "send", send)
    assert asyncio.run(ask())[0] == (math.log(0.25), math.log(0.75))
    assert (required, len(asked)) == (["a", "a"], 2)


def test_a_server_that_is_never_sure_to_be_the_same_is_an_error(monkeypatch):
    """As in an application that blocks its event loop for seconds, again and again."""
    engine, required = believing(monkeypatch)

    async def send(*_):
        engine.forget()
        return 200, json.dumps(ANSWER)

    async def ask():
        async with engine:
            await engine.ask(Prefix((1,)), served("a"))

    monkeypatch.setattr(engine._http, "send", send)
    with pytest.raises(ConfigError, match="this event loop stood still for more than 2 s; run what blocks it"):
        asyncio.run(ask())
    assert required == ["a"] * 10


def test_who_waits_for_an_answer_while_the_server_is_verified_again_asks_once(monkeypatch):
    """With every answer slower than a pause, somebody always verifies; asking anew for that would not end."""
    (engine, required), asked = believing(monkeypatch, idle_s=0.1), []

    async def send(path, *_):
        asked.append(path)
        await asyncio.sleep(0.3)
        return 200, json.dumps(ANSWER)

    async def ask():
        async with engine:
            await engine.verify([served("a"), served("b")])
            first = asyncio.ensure_future(engine.ask(Prefix((1,)), served("a")))
            await asyncio.sleep(0.2)
            await engine.ask(Prefix((2,)), served("b"))
            await first

    monkeypatch.setattr(client, "_BEAT_S", 3600)
    monkeypatch.setattr(engine._http, "send", send)
    asyncio.run(ask())
    assert (len(asked), required[:2]) == (2, ["a", "b"])


@pytest.mark.parametrize("labels", [(11, 12), (11, 12, 13, 14)])
def test_as_many_log_probabilities_are_asked_for_as_there_are_labels(labels, monkeypatch):
    sent = []

    async def send(path, body, **_):
        sent.append(body)
        top = {f"token_id:{label}": -math.log(len(labels)) for label in labels}
        return 200, json.dumps({"choices": [{"logprobs": {"top_logprobs": [top]}}]})

    async def ask():
        engine = Completions("http://127.0.0.1:9")
        monkeypatch.setattr(engine, "_send", send)
        found, _ = await engine.ask_unverified(Prefix((1, 2)), Suffix((5, 6), (5,), labels), "a")
        await engine.close()
        return found

    assert asyncio.run(ask()) == pytest.approx([-math.log(len(labels))] * len(labels))
    assert (sent[0]["prompt"], sent[0]["logprobs"], sent[0]["allowed_token_ids"]) == (
        [1, 2, 5, 6],
        len(labels),
        [*labels],
    )


VERDICT = {
    "policy": "toy", "status": "ok", "flagged": False, "adapter": "toy@012345678901", "label": "ok",
    "probability": 0.25, "threshold": 0.5, "probabilities": {"ok": 0.75, "bad": 0.25}, "reason": None,
}  # fmt: skip
WHOLE = {"id": "x", "action": "allow", "complete": True, "verdicts": [VERDICT], "usage": {}, "timing_ms": {}}


@pytest.mark.parametrize("key", ["toy", "ok", "x", "none", "verdicts"])
def test_an_answer_that_is_used_is_as_it_came(key, monkeypatch):
    monkeypatch.setenv(KEY, key)
    with server(content=WHOLE) as (url, _), Guard(url, timeout=5) as guard:
        (verdict,) = guard.check([{"role": "user", "content": "Hello"}]).verdicts
    assert (verdict.policy, verdict.label, verdict.probabilities) == ("toy", "ok", {"ok": 0.75, "bad": 0.25})


def completion_of(said: object) -> object:
    return {"choices": [{"logprobs": {"top_logprobs": [{"token_id:3": said, "token_id:4": 0.0}]}}]}


def check(url: str) -> None:
    with Guard(url, timeout=5) as guard:
        guard.check([{"role": "user", "content": "Hello"}])


def ask(url: str, way: Callable[[Completions], Awaitable[object]]) -> None:
    async def asking() -> None:
        async with Completions(url) as engine:
            await way(engine)

    asyncio.run(asking())


def ask_toy(engine: Completions) -> Awaitable[object]:
    return engine.ask_unverified(Prefix((1,)), Suffix((2,), (2,), (3, 4)), "toy")


UNFIT = {  # status 200, and not what was asked for
    "no guard": (lambda key: {key: 1}, check),
    "another verdict": (lambda key: WHOLE | {"verdicts": [VERDICT | {"adapter": "a" * 190 + key}]}, check),
    "no list": (lambda key: f"{'a' * 90}{key}", lambda url: ask(url, Completions.models)),
    "another length": (
        lambda key: {"data": [{"id": "toy", "max_model_len": key}]},
        lambda url: ask(url, Completions.models),
    ),
    "no numbers": (completion_of, lambda url: ask(url, ask_toy)),
}


@pytest.mark.parametrize("key", [SECRET, LONG], ids=["all signs", "long"])
@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_told_without_the_key(name, key, monkeypatch):
    monkeypatch.setenv(KEY, key)
    answer, way = UNFIT[name]
    with server(content=answer(key)) as (url, _), pytest.raises(AloraError) as caught:
        way(url)
    assert not [error for error in with_causes(caught.value) if key[:6] in str(error)]
