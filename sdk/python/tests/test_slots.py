"""The slots of the next stream, beside open streams and jobs of ended ones."""

import asyncio

import pytest

from pitwheel.slots import Slots


async def _next(slots: Slots) -> int | None:
    """The slots of the next stream. `None`: it must wait."""
    waits = asyncio.create_task(slots.for_next_stream())
    for _ in range(10):  # More turns of the event loop than it needs.
        await asyncio.sleep(0)
    if waits.done():
        return waits.result()
    waits.cancel()
    return None


async def a_stream_has_all_slots_when_the_jobs_of_the_ended_one_end_soon() -> None:
    slots = Slots(4)
    assert await _next(slots) == 4
    slots.opened(4)
    slots.ended(4, kept=2)
    slots.freed()
    assert await _next(slots) is None, "a job of the ended stream runs"
    slots.freed()
    assert await _next(slots) == 4


async def one_long_job_of_an_ended_stream_keeps_no_other_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitwheel.slots.ENDING_JOBS_SECONDS_MAX", 0)
    slots = Slots(8)
    slots.opened(8)
    slots.ended(8, kept=8)
    for _ in range(4):
        slots.freed()
    assert await _next(slots) == 4
    slots.opened(4)
    for _ in range(3):
        slots.freed()
    assert await _next(slots) == 3


async def streams_divide_the_slots_that_long_jobs_of_ended_ones_leave_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pitwheel.slots.ENDING_JOBS_SECONDS_MAX", 0)
    slots = Slots(8)
    slots.opened(8)
    slots.ended(8, kept=8)
    assert await _next(slots) is None, "no slot is free"
    slots.freed()
    slots.freed()
    assert await _next(slots) == 2
    slots.opened(2)
    slots.freed()
    assert await _next(slots) is None, "one slot is too little beside two"
    slots.freed()
    assert await _next(slots) == 2
    slots.opened(2)
    for _ in range(4):
        slots.freed()
    assert await _next(slots) == 4, "the rest"
    slots.opened(4)
    assert await _next(slots) is None, "the open streams have all slots"
    for count in (2, 2, 4):
        slots.ended(count, kept=0)
    assert await _next(slots) == 8
