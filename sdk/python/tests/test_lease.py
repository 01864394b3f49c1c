"""A worker starts no job whose lease may have ended: another worker may run it."""

import asyncio

import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, assignment, claim, some_heartbeats
from gate import Gate

from pitwheel._proto import pitwheel_pb2 as pb
from pitwheel.attempt import Handler
from pitwheel.lease import Lease, now
from pitwheel.runner import Runner
from pitwheel.stream import Stream


class Clock:
    """The clock of leases, which also goes on while the process is stopped."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("pitwheel.lease.monotonic", clock)
    return clock


async def a_job_that_arrives_after_the_lease_has_ended_is_released(
    server: FakeServer, work: RunWorker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers_heartbeats.clear()
    gate = Gate()
    await work(gate.handle)
    stream = await server.stream()
    clock.now += server.lease - 1
    stream.assign(assignment(1))
    assert (await gate.next()).id == 1

    clock.now += 1
    server.lost = {2}
    stream.assign(assignment(2))
    assert (await server.result(2)).HasField("release")
    assert "job 2 of kind `greet` arrived too late for its lease" in caplog.text

    server.answers_heartbeats.set()
    await some_heartbeats(server)
    stream.assign(assignment(3))
    assert (await gate.next()).id == 3
    gate.open.set()
    assert "while it was running here" not in caplog.text


async def a_heartbeat_renews_the_lease_from_the_time_at_which_it_was_sent(
    server: FakeServer, work: RunWorker, clock: Clock
) -> None:
    server.heartbeat_every = 3600
    server.answers_heartbeats.clear()
    gate = Gate()
    await work(gate.handle)
    stream = await server.stream()
    stream.assign(assignment(1))
    context = await gate.next()
    await server.until(lambda: server.heartbeats)

    clock.now += server.lease
    server.cancelled = [claim(1)]
    server.answers_heartbeats.set()
    await asyncio.wait_for(context.cancelled.wait(), TIMEOUT)
    stream.assign(assignment(2))
    assert (await server.result(2)).HasField("release")
    gate.open.set()


async def the_lease_begins_when_the_stream_is_asked_for(
    server: FakeServer, work: RunWorker, clock: Clock
) -> None:
    server.answers_heartbeats.clear()
    server.welcomes.clear()
    await work(Gate().handle)
    await server.until(lambda: server.asked)
    clock.now += server.lease
    server.welcomes.set()
    (await server.stream()).assign(assignment(1))

    assert (await server.result(1)).HasField("release")
    server.answers_heartbeats.set()


async def jobs_that_wait_for_a_slot_are_released_when_the_lease_has_ended(
    server: FakeServer, work: RunWorker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.runner.WAITING_SECONDS_MAX", 3600)
    server.answers_heartbeats.clear()
    gate = Gate()
    await work(gate.handle, slots=1)
    (await server.stream()).assign(assignment(1), assignment(2), assignment(3))
    await gate.next()
    clock.now += server.lease
    gate.open.set()

    assert (await server.result(1)).HasField("complete")
    for waiting in (2, 3):
        assert (await server.result(waiting)).HasField("release")
    server.answers_heartbeats.set()


async def a_job_that_is_read_after_its_worker_was_declared_dead_is_not_started() -> None:
    class Call:
        def cancel(self) -> None:
            """gRPC still returns a message that it has read by then."""

    results: list[pb.Result] = []

    async def send(request: pb.ReportResultRequest, timeout: float) -> pb.ReportResultResponse:
        results.extend(request.results)
        return pb.ReportResultResponse(written=[pb.WRITTEN_LOST] * len(request.results))

    gate = Gate()
    runner = Runner({"greet": Handler(gate.handle, forget=False)}, 1, send)
    stream = Stream(1, Call(), Lease(30, now()))
    runner.opened(stream)
    runner.lost(stream)
    runner.assigned(stream, [assignment(1)])
    runner.reporter.close()
    await asyncio.wait_for(runner.reporter.run(), TIMEOUT)

    assert not runner.running and results[0].HasField("release")
