"""Readings arrive as they come, and end when what computes them has ended."""

import asyncio
from contextlib import aclosing

import pytest

from alora.guard.reader import EngineDead, Reading, as_they_come


async def _after(seconds: float, index: int) -> Reading:
    await asyncio.sleep(seconds)
    return Reading(index)


def test_the_first_to_come_is_the_first_given():
    async def given() -> list[int]:
        return [reading.index async for reading in as_they_come([_after(0.05, 0), _after(0, 1)])]

    assert asyncio.run(given()) == [1, 0]


def test_a_wait_ends_when_the_engine_is_found_dead():
    cancelled = []

    async def never() -> Reading:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        raise AssertionError

    def check() -> None:
        raise EngineDead("the engine is dead")

    async def given() -> list[int]:
        found = []
        with pytest.raises(EngineDead):
            async with aclosing(as_they_come([_after(0, 0), never()], check)) as readings:
                found = [reading.index async for reading in readings]
        return found

    asyncio.run(asyncio.wait_for(given(), 30))
    assert cancelled == [True]
