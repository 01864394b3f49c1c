"""The slots of a worker, divided among its streams.

A job keeps its slot until its handler ends, also when its stream breaks. A stream that named all slots meanwhile would get
jobs that cannot start, release them, and get the next ones. So each stream names only the slots that it has.
"""

import asyncio

# How long the jobs of ended streams are waited for, so that the next stream has all slots.
ENDING_JOBS_SECONDS_MAX = 1.0


class Slots:
    """Counts the slots of the open streams, and those in which jobs of ended streams still run."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._open = 0
        self._kept = 0
        self._changed = asyncio.Event()

    def opened(self, slots: int) -> None:
        """A stream has this many slots: what `for_next_stream` returned."""
        self._open += slots

    def ended(self, slots: int, kept: int) -> None:
        """A stream with this many slots has ended, and `kept` jobs of it still run."""
        self._open -= slots
        self._kept += kept
        self._changed.set()

    def freed(self) -> None:
        """A job of an ended stream no longer runs."""
        self._kept -= 1
        self._changed.set()

    async def for_next_stream(self) -> int:
        """Waits until one more stream can open beside the open ones. Returns its slots. Safe to cancel; for one caller.

        If jobs of ended streams run for longer, the stream gets the slots that they leave free: as many as the open streams
        have, or half of what these do not have. Otherwise each job that ends would open a stream for its slot.
        """
        is_late = False

        def set_late() -> None:
            nonlocal is_late
            is_late = True
            self._changed.set()

        timer = asyncio.get_running_loop().call_later(ENDING_JOBS_SECONDS_MAX, set_late)
        try:
            while True:
                rest = self._count - self._open
                free = rest - self._kept
                wanted = min(self._open, (rest + 1) // 2) if is_late else rest
                if free >= max(1, wanted):
                    return free
                self._changed.clear()
                await self._changed.wait()
        finally:
            timer.cancel()
