"""A guard of two toy bundles, read by the packed scorer; and readers that fail in every way a reader can."""

import asyncio
import math

import pytest
from fastapi.testclient import TestClient

from alora.guard.core import GuardCore
from alora.guard.reader import EngineDead, Overloaded, Reading, Served
from alora.guard.reading_in_process import PackedReader
from alora.guard.standalone import make_app
from tests.clients import listening
from tests.integration.client.conftest import base, bundles, renderer

__all__ = ["base", "bundles", "listening", "renderer"]

MESSAGES = [{"role": "user", "content": "Which pills for a headache?"}, {"role": "assistant", "content": "Take two."}]


@pytest.fixture(scope="package")
def reader(base, bundles):
    return PackedReader(base, bundles)


@pytest.fixture(scope="package")
def guard_with(bundles, renderer):
    """A guard of the bundles that is read by a reader of the test's own."""
    return lambda reader, **settings: GuardCore([Served.of(bundle) for bundle in bundles], renderer, reader, **settings)


@pytest.fixture(scope="package")
def guard(guard_with, reader):
    return guard_with(reader)


@pytest.fixture
def client(guard):
    with TestClient(make_app(guard)) as client:
        yield client


class Says:
    """Reads what ``logits`` has for a policy and a prefix; ``asked`` of it were policies, prefixes and requests."""

    def __init__(self, logits):
        self.logits, self.asked = logits, []

    async def read(self, prefix, asked, request):
        self.asked.append((asked, prefix, request))
        for index, item in enumerate(asked):
            yield Reading(index, self.logits(item, prefix))

    async def unload(self, name):
        pass

    def require_running(self):
        pass

    def trouble(self):
        return None


ERRORS = {
    "raises": RuntimeError("worker fell over"),
    "times out": TimeoutError(),
    "dead": EngineDead("the engine is dead"),
    "full": Overloaded("the engine takes no more"),
}


class Faulty:
    """Answers the first policy rightly and fails on the second, in the way that ``fault`` names."""

    def __init__(self, right, fault):
        self.right, self.fault, self.closed = right, fault, False

    async def read(self, prefix, asked, request):
        try:
            async for reading in self.right.read(prefix, asked[:1], request):
                yield reading
            if self.fault in ERRORS:
                raise ERRORS[self.fault]
            if self.fault == "hangs":
                await asyncio.Event().wait()
            logits = {"nan": (math.nan, 0.0), "short": (1.0,), "long": (1.0, 2.0, 3.0), "inf": (math.inf, 0.0)}
            if self.fault in logits:
                yield Reading(1, logits[self.fault])
            if self.fault == "refuses":
                yield Reading(1, error="advice@0 is not loaded")
            if self.fault == "twice":
                yield Reading(0, (9.0, -9.0))
        finally:
            self.closed = True


FAULTS = ("raises", "times out", "hangs", "nan", "inf", "short", "long", "refuses", "ends", "twice")
