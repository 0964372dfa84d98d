"""A burst and a SIGTERM: what is let in is answered, the rest is refused with a status (P5)."""

import asyncio
import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import AsyncMock, Mock
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from alora.commands.serve_packed import serve_guard
from alora.config.schema import ServingSettings
from alora.data.conversation import parse_conversation
from alora.guard import exported_metrics as metrics
from alora.guard.admission import Admission
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.standalone import make_app
from tests.clients import listening
from tests.integration.guard.conftest import MESSAGES, Says

BODY = {"messages": MESSAGES}


class Waits(Says):
    """Reads when it is let go."""

    def __init__(self):
        super().__init__(lambda *_: (1.0, -1.0))
        self.reading, self.go = 0, asyncio.Event()

    async def read(self, prefix, asked, request):
        self.reading += 1
        self.loop = asyncio.get_running_loop()
        await self.go.wait()
        async for reading in super().read(prefix, asked, request):
            yield reading


@pytest.mark.parametrize(("conversations", "worth", "taken"), [(32, 1000, 32), (1000, 20, 20), (1000, 1000, 200)])
def test_of_200_clients_at_once_those_that_fit_are_answered_and_the_rest_is_429(
    bundles, renderer, conversations, worth, taken
):
    """A bound of conversations, one of the tokens of ``worth`` of them, and bounds above 200 as the control."""
    served = [Served.of(bundle) for bundle in bundles]
    reader, refused = Waits(), metrics.REFUSED.labels("429")._value.get()
    prefix = renderer.prefix(parse_conversation(MESSAGES, "test"))
    tokens = len(prefix.token_ids) + sum(len(item.suffix.token_ids) for item in served)
    guard = GuardCore(served, renderer, reader, admission=Admission(conversations, worth * tokens))
    app = make_app(guard)

    async def burst():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:
            asking = {asyncio.create_task(client.post("/v1/guard", json=BODY)) for _ in range(200)}
            while reader.reading + sum(one.done() for one in asking) < 200:
                await asyncio.sleep(0)
            reader.go.set()
            return await asyncio.gather(*asking)

    answers = asyncio.run(burst())
    codes = [answer.status_code for answer in answers]
    assert (codes.count(200), codes.count(429)) == (taken, 200 - taken)
    waits = [int(answer.headers["Retry-After"]) for answer in answers if answer.status_code == 429]
    assert all(1 <= wait <= 60 for wait in waits)
    assert metrics.REFUSED.labels("429")._value.get() - refused == 200 - taken
    assert guard.admission.under_way == 0


@pytest.mark.parametrize(("drain_s", "answered"), [(30, 12), (0, 0)])
def test_what_is_under_way_at_the_end_is_answered(guard_with, monkeypatch, drain_s, answered):
    """uvicorn ends as at SIGTERM; the readings come once it listens no more. The control has no time for them."""
    reader, codes = Waits(), []
    guard = guard_with(reader)

    def ask(url):
        try:
            return httpx.post(f"{url}/v1/guard", json=BODY, timeout=60).status_code
        except httpx.TransportError:
            return None

    def let_go(url):
        address = urlsplit(url)
        with contextlib.suppress(OSError):
            while True:
                socket.create_connection((address.hostname, address.port)).close()
        reader.loop.call_soon_threadsafe(reader.go.set)

    def run(app, **options):
        with ThreadPoolExecutor(13) as pool:
            with listening(app, **options) as url:
                asking = [pool.submit(ask, url) for _ in range(12)]
                while reader.reading < 12:
                    time.sleep(0.01)
                if drain_s:
                    pool.submit(let_go, url)
            codes.extend(one.result() for one in asking)

    monkeypatch.setattr(uvicorn, "run", run)
    loader = Mock(refusal=None, remark=lambda: None, follow=AsyncMock(), watch=AsyncMock())  # with nothing to do
    assert serve_guard(ServingSettings(drain_s=drain_s), guard, loader) == 0
    assert codes.count(200) == answered
