"""vLLM's end waits for what the guard has under way, and for no longer than it is given (P5)."""

import asyncio

import pytest

from alora.guard.admission import Admission
from alora.guard.endpoint import _answer_before_the_end
from alora.guard.reader import EngineDead


class Engine:
    """As vLLM's client, whose shutdown ends what it still has."""

    def __init__(self, admission):
        self.admission, self.lost = admission, None

    def shutdown(self, timeout=None):
        self.lost, self.left = self.admission.under_way, timeout


@pytest.mark.parametrize(("timeout", "lost"), [(30, 0), (0, 12), (None, 12)])
def test_what_is_under_way_is_answered_before_the_engine_ends(timeout, lost):
    """At SIGTERM, from a thread; the control gives no time."""
    admission = Admission(100, 100)
    engine = Engine(admission)
    _answer_before_the_end(engine, admission)

    async def answered(going):
        with admission.place():
            await going.wait()

    async def server():
        going = asyncio.Event()
        asked = [asyncio.create_task(answered(going)) for _ in range(12)]
        while admission.under_way < 12:
            await asyncio.sleep(0)
        ending = asyncio.create_task(asyncio.to_thread(engine.shutdown, timeout=timeout))
        while not admission.closing:
            await asyncio.sleep(0)
        with pytest.raises(EngineDead), admission.place():
            pass
        if lost:
            await ending
        going.set()
        await asyncio.gather(ending, *asked)

    asyncio.run(server())
    assert engine.lost == lost
    assert (engine.left is None) == (timeout is None)


def test_a_shutdown_from_the_servers_own_loop_does_not_wait():
    admission = Admission(100, 100)
    engine = Engine(admission)
    _answer_before_the_end(engine, admission)

    async def server():
        with admission.place():
            engine.shutdown(timeout=3600)

    asyncio.run(server())
    assert engine.lost == 1
