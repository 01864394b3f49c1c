"""A worker keeps its jobs when a stream breaks, and releases the jobs it cannot finish."""

import asyncio
import socket
from collections import defaultdict
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, FakeStream, assignment, claim, fake_server

from pitwheel import Context, Worker
from pitwheel.worker import LAST_REPORTS_SECONDS_MAX


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


def _free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


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


async def a_running_job_survives_a_broken_stream(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    await work(gate.handle)
    first = await server.stream()
    first.assign(assignment(1))
    await gate.next()

    first.end()
    second = await server.stream(2)
    heartbeat = await server.ended(first.worker_id, [(1, 10)])
    assert first.worker_id not in heartbeat.worker_ids
    await server.until(lambda: list(server.heartbeats[-1].worker_ids) == [second.worker_id])

    gate.open.set()
    assert (await server.result(1)).complete.result == '"through"'
    await server.ended(first.worker_id, [])
    await server.until(lambda: not server.heartbeats[-1].ended)


async def a_job_is_held_until_its_report_is_answered(server: FakeServer, work: RunWorker) -> None:
    server.heartbeat_every = 30
    gate = Gate()
    gate.open.set()
    await work(gate.handle)
    first = await server.stream()
    server.answers.clear()
    first.assign(assignment(1))
    await server.result(1)

    first.end()
    await server.ended(first.worker_id, [(1, 10)])
    second = await server.stream(2)
    await server.until(lambda: second.worker_id in server.heartbeats[-1].worker_ids)
    server.answers.set()
    await server.ended(first.worker_id, [])


async def an_ended_stream_without_jobs_is_reported_at_once(
    work: RunWorker, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.heartbeat_every = 30
    await work(Gate().handle)
    stream = await server.stream()
    await server.until(lambda: server.heartbeats)
    server.refuse_streams = [grpc.StatusCode.UNAVAILABLE] * 1000
    server.dead = [stream.worker_id]  # Expected: the worker asked to be removed.
    stream.end()

    await server.ended(stream.worker_id, [])
    server.refuse_streams.clear()
    await server.stream(2)
    await server.until(lambda: not server.heartbeats[-1].ended)
    assert "declared dead" not in caplog.text


async def the_next_streams_divide_the_slots_that_long_jobs_leave_free(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.slots.ENDING_JOBS_SECONDS_MAX", 0)
    gates = Gates()

    async def assign(stream: FakeStream, *job_ids: int) -> None:
        stream.assign(*(assignment(job_id) for job_id in job_ids))
        for job_id in job_ids:
            await gates[job_id].next()

    await work(gates.handle, slots=4)
    first = await server.stream()
    await assign(first, 1, 2, 3, 4)
    first.end()
    await server.ended(first.worker_id, [(1, 10), (2, 20), (3, 30), (4, 40)])
    gates[1].open.set()
    second = await server.stream(2)
    gates[2].open.set()
    third = await server.stream(3)
    gates[3].open.set()
    fourth = await server.stream(4)
    gates[4].open.set()
    fifth = await server.stream(5)

    assert [stream.request.slots for stream in server.streams] == [4, 1, 1, 1, 1]
    assert len({stream.request.process for stream in server.streams} - {""}) == 1
    await assign(second, 5)
    await assign(third, 6)
    await assign(fourth, 7)
    await assign(fifth, 8)
    await server.until(lambda: list(server.heartbeats[-1].worker_ids) == [2, 3, 4, 5])
    for gate in gates.values():
        gate.open.set()


async def a_slot_that_becomes_free_does_not_end_the_delay_before_the_next_stream(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = iter([0.0, 3600.0])
    monkeypatch.setattr("pitwheel.slots.ENDING_JOBS_SECONDS_MAX", 0)
    monkeypatch.setattr("pitwheel.worker.Backoff.next", lambda _: next(delays))
    gates = Gates()
    await work(gates.handle, slots=3)
    first = await server.stream()
    first.assign(assignment(1), assignment(2))
    await gates[2].next()
    first.end()
    second = await server.stream(2)
    second.end()
    await server.ended(second.worker_id, [])

    gates[1].open.set()
    await server.result(1)
    await _some_heartbeats(server)
    assert len(server.streams) == 2
    gates[2].open.set()


async def a_job_that_waits_for_a_slot_is_released_when_its_stream_ends(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.runner.WAITING_SECONDS_MAX", 3600)
    gate = Gate()
    await work(gate.handle, slots=1)
    first = await server.stream()
    first.assign(assignment(1), assignment(2))
    await gate.next()

    first.end()
    assert (await server.result(2)).HasField("release")
    gate.open.set()
    assert (await server.result(1)).HasField("complete")
    second = await server.stream(2)
    assert second.request.slots == 1
    assert len(server.results) == 2


async def a_worker_declared_dead_cancels_its_handlers_and_opens_a_new_stream(
    server: FakeServer, work: RunWorker
) -> None:
    gate = Gate()
    await work(gate.handle)
    first = await server.stream()
    first.assign(assignment(1))
    context = await gate.next()

    server.dead = [first.worker_id]
    await asyncio.wait_for(context.cancelled.wait(), TIMEOUT)
    second = await server.stream(2)
    await asyncio.wait_for(first.is_finished.wait(), TIMEOUT)
    gate.open.set()
    second.assign(assignment(2))

    assert (await server.result(2)).HasField("complete")
    heartbeat = server.heartbeats[-1]
    assert list(heartbeat.worker_ids) == [second.worker_id] and not heartbeat.ended


async def a_failed_heartbeat_is_repeated_soon(server: FakeServer, work: RunWorker) -> None:
    server.heartbeat_every = 30
    server.refuse_heartbeats = [grpc.StatusCode.UNAVAILABLE] * 2
    await work(Gate().handle)

    await server.until(lambda: server.heartbeats)


async def a_worker_waits_for_an_unreachable_server() -> None:
    address = _free_address()
    worker = Worker(address)
    gate = Gate()
    gate.open.set()
    worker.handler("greet")(gate.handle)
    run = asyncio.create_task(worker.run())
    await asyncio.sleep(0.3)  # Lets some connection attempts fail first.

    async with fake_server(address) as server:
        (await server.stream()).assign(assignment(1))
        assert (await server.result(1)).HasField("complete")
        worker.stop()
        await asyncio.wait_for(run, TIMEOUT)


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
    await _some_heartbeats(server)


async def _some_heartbeats(server: FakeServer) -> None:
    """A worker that would release its jobs, or open a stream, has done it by then."""
    number = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > number + 3)


async def a_stop_during_a_drain_starts_the_grace_time(server: FakeServer, work: RunWorker) -> None:
    gate = Gate()
    worker = await work(gate.handle, grace=3600)
    await _drain(server, gate)

    worker.stop()
    await _some_heartbeats(server)
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


async def a_first_stream_refused_with_a_permanent_error_ends_the_run(server: FakeServer) -> None:
    server.refuse_streams = [grpc.StatusCode.UNAUTHENTICATED]
    worker = Worker(server.address)
    worker.handler("greet")(Gate().handle)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(worker.run(), TIMEOUT)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def a_later_stream_that_is_refused_is_retried(server: FakeServer, work: RunWorker) -> None:
    await work(Gate().handle)
    first = await server.stream()
    server.refuse_streams = [grpc.StatusCode.UNAUTHENTICATED]
    first.end()

    await server.stream(2)


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
