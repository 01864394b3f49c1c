"""A worker keeps its jobs when a stream breaks, and opens others for the slots that these jobs leave free."""

import asyncio
import socket

import grpc
import grpc.aio
import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, FakeStream, assignment, fake_server, some_heartbeats
from gate import Gate, Gates

from pitwheel import Worker


def _free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


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
    await some_heartbeats(server)
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
    assert first.worker_id not in heartbeat.worker_ids and not heartbeat.ended


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
