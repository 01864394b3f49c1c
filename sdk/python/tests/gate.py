"""Handlers that wait until the test lets them go on."""

import asyncio
from collections import defaultdict
from typing import Any

from fake_server import TIMEOUT

from pitwheel import Context


class Gate:
    """A handler that waits until the test opens it."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[Context] = asyncio.Queue()
        self.open = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0

    async def handle(self, payload: Any, context: Context) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.started.put_nowait(context)
            await self.open.wait()
        finally:
            self.at_once -= 1
        return "through"

    async def next(self) -> Context:
        return await asyncio.wait_for(self.started.get(), TIMEOUT)


class Gates(defaultdict[int, Gate]):
    """A handler with a gate for each job."""

    def __init__(self) -> None:
        super().__init__(Gate)

    async def handle(self, payload: Any, context: Context) -> str:
        return await self[context.id].handle(payload, context)
