"""A worker tells the server what it runs, and passes cancel requests to its handlers."""

import asyncio
import sys
from typing import Any

import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, assignment, claim
from gate import Gate

from pitwheel import Context, Worker


async def a_worker_sends_its_queues_kinds_and_slots(server: FakeServer, work: RunWorker) -> None:
    await work(Gate().handle, queues=["mail", "default"], slots=7, name="host:1", token="secret")

    request = (await server.stream()).request
    assert (request.worker, list(request.queues), list(request.kinds), request.slots) == (
        "host:1",
        ["mail", "default"],
        ["greet"],
        7,
    )
    assert ("authorization", "Bearer secret") in server.metadata


async def all_workers_of_a_process_send_its_name(server: FakeServer, work: RunWorker) -> None:
    for _ in range(2):
        await work(Gate().handle)

    first, second = await server.stream(1), await server.stream(2)
    assert first.request.process == second.request.process != ""


async def after_a_cancel_request_the_handler_decides(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> str:
        await context.cancelled.wait()
        if payload == "raise":
            raise RuntimeError("stopped")
        return "finished"

    await work(greet)
    stream = await server.stream()
    stream.assign(assignment(1, '"raise"'), assignment(2, '"return"'))
    server.cancelled = [claim(1), claim(2)]

    assert (await server.result(1)).fail.error == "RuntimeError: stopped"
    assert (await server.result(2)).complete.result == '"finished"'


async def a_cancel_request_for_an_earlier_claim_is_ignored(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    await work(gate.handle)
    stream = await server.stream()
    stream.assign(assignment(1), assignment(2))
    first, second = await gate.next(), await gate.next()
    server.cancelled = [claim(1, fence=9), claim(2)]
    await asyncio.wait_for(second.cancelled.wait(), TIMEOUT)

    assert not first.cancelled.is_set()
    gate.open.set()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs eager tasks")
async def a_handler_that_waits_for_nothing_is_reported_in_a_loop_with_eager_tasks(
    server: FakeServer, work: RunWorker
) -> None:
    async def greet(payload: Any, context: Context) -> int:
        return context.id

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    await work(greet, slots=1)
    stream = await server.stream()
    for job_id in (1, 2):
        stream.assign(assignment(job_id))
        assert (await server.result(job_id)).complete.result == str(job_id)


def an_invalid_worker_is_refused() -> None:
    async def greet(payload: Any, context: Context) -> None:
        pass

    def not_async(payload: Any, context: Context) -> None:
        pass

    refused: list[dict[str, Any]] = [{"slots": 0}, {"slots": 10_001}, {"queues": []}, {"queues": "default"}]
    for options in refused:
        with pytest.raises(ValueError, match="give"):
            Worker("127.0.0.1:1", **options)
    worker = Worker("127.0.0.1:1")
    with pytest.raises(ValueError, match="no handlers"):
        asyncio.run(worker.run())
    with pytest.raises(TypeError, match="is not async"):
        worker.handler("greet")(not_async)  # type: ignore[type-var]
    worker.handler("greet")(greet)
    with pytest.raises(ValueError, match="two handlers"):
        worker.handler("greet")(greet)
