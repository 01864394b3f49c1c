"""A worker that ends takes no more jobs, and releases those that it cannot finish."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, assignment, some_heartbeats
from gate import Gate

from pitwheel import Context, Worker
from pitwheel.worker import LAST_REPORTS_SECONDS_MAX


async def a_shutdown_takes_no_more_jobs_and_finishes_the_running_ones(
    server: FakeServer, work: RunWorker
) -> None:
    gate = Gate()
    worker = await work(gate.handle)
    stream = await server.stream()
    stream.assign(assignment(1))
    await gate.next()

    worker.stop()
    await asyncio.wait_for(stream.is_finished.wait(), TIMEOUT)
    await server.ended(stream.worker_id, [(1, 10)])
    gate.open.set()

    assert (await server.result(1)).HasField("complete")
    await server.ended(stream.worker_id, [])
    assert len(server.streams) == 1


async def a_shutdown_releases_jobs_that_do_not_finish(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    worker = await work(gate.handle, grace=0.05, slots=1)
    stream = await server.stream()
    stream.assign(assignment(1), assignment(2))
    await gate.next()

    worker.stop()

    assert (await server.result(1)).HasField("release")
    assert (await server.result(2)).HasField("release"), "it waited for a slot"
    await server.ended(stream.worker_id, [])
    assert gate.at_once == 0


async def a_handler_that_ignores_cancellation_is_released(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.runner.CLEANUP_SECONDS_MAX", 0.05)
    started, done = asyncio.Event(), asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        started.set()
        while not done.is_set():
            with suppress(asyncio.CancelledError):
                await done.wait()

    worker = await work(greet, grace=0)
    stream = await server.stream()
    stream.assign(assignment(1))
    await asyncio.wait_for(started.wait(), TIMEOUT)

    worker.stop()

    assert (await server.result(1)).HasField("release")
    await server.ended(stream.worker_id, [])
    done.set()


async def a_shutdown_waits_a_limited_time_for_the_server(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.worker.LAST_REPORTS_SECONDS_MAX", 0.05)
    gate = Gate()
    gate.open.set()
    worker = Worker(server.address)
    worker.handler("greet")(gate.handle)
    run = asyncio.create_task(worker.run())
    stream = await server.stream()
    server.answers.clear()
    stream.assign(assignment(1))
    await server.result(1)

    worker.stop()

    await asyncio.wait_for(run, TIMEOUT)
    await server.ended(stream.worker_id, [])


async def a_shutdown_ends_with_its_last_heartbeat(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.worker.LAST_HEARTBEAT_SECONDS_MAX", 3600)
    server.heartbeat_every = 3600
    server.answers_heartbeats.clear()
    worker = Worker(server.address)
    worker.handler("greet")(Gate().handle)
    run = asyncio.create_task(worker.run())
    stream = await server.stream()
    await server.until(lambda: server.heartbeats)

    worker.stop()
    await asyncio.wait_for(stream.is_finished.wait(), TIMEOUT)
    await asyncio.sleep(0.05)  # Lets the shutdown reach its last step while a heartbeat is in flight.
    server.answers_heartbeats.set()

    await asyncio.wait_for(run, TIMEOUT)
    await server.ended(stream.worker_id, [])


async def a_second_stop_ends_the_grace_time(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    worker = await work(gate.handle, grace=3600)
    (await server.stream()).assign(assignment(1))
    await gate.next()

    worker.stop()
    worker.stop()

    assert (await server.result(1)).HasField("release")


async def _drain(server: FakeServer, gate: Gate) -> None:
    """Gives the worker a job, asks it to drain, and waits until it does."""
    stream = await server.stream()
    stream.assign(assignment(1))
    await gate.next()
    server.draining = [stream.worker_id]
    await asyncio.wait_for(stream.is_finished.wait(), TIMEOUT)
    await some_heartbeats(server)


async def a_stop_during_a_drain_starts_the_grace_time(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    worker = await work(gate.handle, grace=3600)
    await _drain(server, gate)

    worker.stop()
    await some_heartbeats(server)
    assert not server.results
    gate.open.set()

    assert (await server.result(1)).HasField("complete")


async def a_second_stop_during_a_drain_ends_the_grace_time(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    worker = await work(gate.handle, grace=3600)
    await _drain(server, gate)

    worker.stop()
    worker.stop()

    assert (await server.result(1)).HasField("release")


async def a_drain_has_no_limit_until_the_grace_time_of_a_stop(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    worker = await work(gate.handle, grace=0.01)
    await _drain(server, gate)
    assert not server.results

    worker.stop()

    assert (await server.result(1)).HasField("release")


async def a_cancelled_run_releases_the_running_jobs(server: FakeServer) -> None:
    gate = Gate()
    worker = Worker(server.address)
    worker.handler("greet")(gate.handle)
    run = asyncio.create_task(worker.run())
    stream = await server.stream()
    stream.assign(assignment(1))
    await gate.next()

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert (await server.result(1)).HasField("release")
    await server.ended(stream.worker_id, [])


@pytest.mark.parametrize("end", ["stop", "drain"])
async def a_run_that_is_cancelled_during_its_shutdown_releases_the_running_jobs(
    server: FakeServer, end: str
) -> None:
    gate = Gate()
    worker = Worker(server.address, grace=3600)
    worker.handler("greet")(gate.handle)
    run = asyncio.create_task(worker.run())
    stream = await server.stream()
    stream.assign(assignment(1))
    await gate.next()
    if end == "stop":
        worker.stop()
    else:
        server.draining = [stream.worker_id]
    await server.ended(stream.worker_id, [(1, 10)])

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert (await server.result(1)).HasField("release")
    await server.ended(stream.worker_id, [])
    assert gate.at_once == 0


async def a_second_cancellation_ends_a_shutdown(server: FakeServer) -> None:
    gate = Gate()
    worker = Worker(server.address)
    worker.handler("greet")(gate.handle)
    run = asyncio.create_task(worker.run())
    server.answers.clear()
    (await server.stream()).assign(assignment(1))
    await gate.next()

    run.cancel()
    assert (await server.result(1)).HasField("release")
    run.cancel()
    done, _ = await asyncio.wait([run], timeout=LAST_REPORTS_SECONDS_MAX / 2)

    assert run in done, "it does not wait for the last report"
    assert run.cancelled()
