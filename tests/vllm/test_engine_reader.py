"""How the guard asks vLLM's engine, on engines of the same shape: aborts, refusals, and names of adapters."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm.lora.request import LoRARequest

from alora.bundle.read import load_battery
from alora.data.conversation import parse_conversation
from alora.guard.core import GuardCore
from alora.guard.reader import EngineDead, Served
from alora.guard.reading_in_vllm import EngineReader
from alora.wire.native import GuardRequest
from tests.vllm import bundles as store

TALK = [{"role": "user", "content": "My parcel is late."}]


@pytest.fixture(scope="module")
def bundles():
    return load_battery(store.battery())


def guard_of(engine, bundles):
    """A guard whose bundles are loaded in ``engine``."""
    served = [Served.of(bundle) for bundle in bundles]
    reader = EngineReader(engine, {item.name: "weights" for item in served}, bundles)
    return GuardCore(served, bundles[0].renderer(store.base()), reader)


def test_at_the_deadline_the_engines_requests_are_aborted(bundles):
    class Engine:
        """As vLLM's: a request is aborted when its ``generate`` is cancelled or closed."""

        asked, running = 0, set()

        async def generate(self, prompt, _params, request_id, *, lora_request, priority):
            assert (prompt["cache_salt"], lora_request, priority) == ("tenant-7", "weights", 3)
            self.asked += 1
            self.running.add(request_id)
            try:
                await asyncio.sleep(3600)
                yield
            finally:
                self.running.remove(request_id)

    async def answered():
        response = await guard.answer(request)
        return response, set(engine.running)

    engine = Engine()
    guard = guard_of(engine, bundles)
    request = GuardRequest(messages=TALK, deadline_ms=500, cache_salt="tenant-7", priority=3)
    response, running = asyncio.run(answered())
    assert [verdict.status for verdict in response.verdicts] == ["missed", "missed"]
    assert (engine.asked, running) == (2, set())


def test_an_answer_that_is_no_number_is_named(bundles):
    """vLLM then gives no label's probability, or that of another token."""

    class Engine:
        errored = False

        async def generate(self, *_, **__):
            yield SimpleNamespace(finished=True, outputs=[SimpleNamespace(logprobs=[{0: None}])], num_cached_tokens=0)

    async def read():
        prefix = bundles[0].renderer(store.base()).prefix(parse_conversation(TALK, "test"))
        return [one async for one in reader.read(prefix, [served], GuardRequest(messages=TALK))]

    served = Served.of(bundles[0])
    reader = EngineReader(Engine(), {served.name: "weights"}, bundles[:1])
    (reading,) = asyncio.run(read())
    assert f"label tokens {list(served.suffix.label_token_ids)} have no probability" in reading.error


@pytest.mark.parametrize(("reason", "status"), [("abort", None), ("error", "failed")])
def test_a_request_that_a_stopping_engine_ends_is_no_verdict(bundles, reason, status):
    """The next server can answer it; the control is an end for another reason."""

    class Engine:
        errored = False

        async def generate(self, *_, **__):
            yield SimpleNamespace(finished=True, outputs=[SimpleNamespace(logprobs=None, finish_reason=reason)])

    asking = guard_of(Engine(), bundles).answer(GuardRequest(messages=TALK))
    if status is None:
        with pytest.raises(EngineDead):
            asyncio.run(asking)
    else:
        assert {verdict.status for verdict in asyncio.run(asking).verdicts} == {status}


def test_a_name_that_is_taken_by_other_weights_gets_the_bundles(bundles):
    """Whoever may load adapters by vLLM's own routes may know a name before its policy is put."""

    class Engine:
        async def add_lora(self, lora):
            done.append(lora)

        async def remove_lora(self, number):
            done.append(number)

    served, done = Served.of(bundles[0]), []
    loras = {served.name: LoRARequest(served.name, 7, "/elsewhere")}
    reader = EngineReader(Engine(), loras)
    asyncio.run(reader.load(served, bundles[0]))
    assert [(lora.lora_int_id, lora.load_inplace) for lora in done] == [(7, True)], "one name, one id"
    assert loras[served.name].lora_path == str(bundles[0].folder.absolute())
    assert reader.trouble() is None
    loras[served.name] = other = LoRARequest(served.name, 7, "/elsewhere")
    assert served.name in str(reader.trouble())
    asyncio.run(reader.unload(served.name))
    assert (loras, done[1:]) == ({served.name: other}, [7])


def test_two_policies_of_the_same_weights_have_two_ids(bundles):
    class Engine:
        async def add_lora(self, lora):
            return True

    loras, first = {}, Served.of(bundles[0])
    reader = EngineReader(Engine(), loras)
    manifest = replace(first.manifest, policy=replace(first.policy, id="second"))
    for served in (first, Served(manifest)):
        asyncio.run(reader.load(served, bundles[0]))
    assert len({lora.lora_int_id for lora in loras.values()}) == 2


def test_weights_that_are_loaded_stay_where_they_came_from(bundles):
    """A recalibrated bundle may come back while requests run with its weights: the engine refuses a second folder."""

    class Engine:
        loaded = None

        async def add_lora(self, lora):
            assert self.loaded in (None, lora.lora_path)
            self.loaded = lora.lora_path

    reader, served = EngineReader(Engine(), {}), Served.of(bundles[0])
    asyncio.run(reader.load(served, bundles[0]))
    asyncio.run(reader.load(served, replace(bundles[0], folder=bundles[1].folder)))
