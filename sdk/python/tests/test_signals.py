"""SIGINT and SIGTERM stop every worker of the process, and are left as they were found."""

import asyncio
import os
import signal
from typing import Any

import pytest
from fake_server import TIMEOUT, FakeServer

from pitwheel import Context, Worker


def _worker(server: FakeServer) -> Worker:
    worker = Worker(server.address)

    @worker.handler("greet")
    async def greet(payload: Any, context: Context) -> None:
        pass

    return worker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def a_signal_stops_all_workers_of_the_process(server: FakeServer, number: signal.Signals) -> None:
    runs = [asyncio.create_task(_worker(server).run()) for _ in range(3)]
    await server.stream(3)

    os.kill(os.getpid(), number)

    await asyncio.wait_for(asyncio.gather(*runs), TIMEOUT)


async def a_worker_that_ends_leaves_the_signals_to_the_others(server: FakeServer) -> None:
    first, second = _worker(server), _worker(server)
    runs = [asyncio.create_task(worker.run()) for worker in (first, second)]
    await server.stream(2)
    taken = signal.getsignal(signal.SIGTERM)
    second.stop()
    await asyncio.wait_for(runs[1], TIMEOUT)

    assert signal.getsignal(signal.SIGTERM) is taken
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(runs[0], TIMEOUT)


async def the_signals_are_left_as_they_were_found(server: FakeServer) -> None:
    def of_application(*_: Any) -> None:
        pass

    found = signal.signal(signal.SIGTERM, of_application)
    try:
        worker = _worker(server)
        run = asyncio.create_task(worker.run())
        await server.stream()
        worker.stop()
        await asyncio.wait_for(run, TIMEOUT)
        assert signal.getsignal(signal.SIGTERM) is of_application
    finally:
        signal.signal(signal.SIGTERM, found)
