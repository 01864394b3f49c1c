"""One job by its id, against a fake server: its stream may break, or be refused."""

import asyncio
from typing import Any

import grpc
import pytest
from fake_server import TIMEOUT, FakeServer, assignment

from pitwheel import Context, Worker
from pitwheel._proto import pitwheel_pb2 as pb


def _worker(server: FakeServer, ends: asyncio.Event, began: asyncio.Event | None = None) -> Worker:
    worker = Worker(server.address, grace=5)

    @worker.handler("greet")
    async def run(payload: Any, context: Context) -> None:
        if began is not None:
            began.set()
        await ends.wait()

    return worker


async def a_job_that_runs_is_reported_although_its_stream_breaks(server: FakeServer) -> None:
    ends, began = asyncio.Event(), asyncio.Event()
    run = asyncio.create_task(_worker(server, ends, began).run_job(7))
    stream = await server.stream()
    assert (stream.request.job_id, list(stream.request.queues)) == (7, [])
    stream.assign(assignment(7))
    await asyncio.wait_for(began.wait(), TIMEOUT)
    stream.end()
    await server.until(lambda: any(beat.ended and beat.ended[0].holding for beat in server.heartbeats))
    ends.set()

    assert await asyncio.wait_for(run, TIMEOUT) is None
    assert [result.claim.job_id for result in server.results] == [7]
    assert len(server.streams) == 1, "no other stream is opened"


async def a_stream_that_breaks_before_the_job_came_is_opened_again(server: FakeServer) -> None:
    ends = asyncio.Event()
    ends.set()
    run = asyncio.create_task(_worker(server, ends).run_job(7))
    (await server.stream()).end()
    (await server.stream(2)).assign(assignment(7))
    assert await asyncio.wait_for(run, TIMEOUT) is None
    assert len(server.results) == 1


async def an_event_of_a_later_version_is_not_taken_for_the_job(server: FakeServer) -> None:
    ends = asyncio.Event()
    ends.set()
    run = asyncio.create_task(_worker(server, ends).run_job(7))
    first = await server.stream()
    first.send(pb.StreamJobsResponse.FromString(b"\x7a\x00"))  # Field 15, empty.
    first.end()
    (await server.stream(2)).assign(assignment(7))
    assert await asyncio.wait_for(run, TIMEOUT) is None
    assert len(server.results) == 1


async def a_job_that_does_not_exist_is_an_error(server: FakeServer) -> None:
    server.refuse_streams.append(grpc.StatusCode.NOT_FOUND)
    with pytest.raises(LookupError):
        await asyncio.wait_for(_worker(server, asyncio.Event()).run_job(7), TIMEOUT)


async def a_stop_releases_the_job_after_the_grace_time(server: FakeServer) -> None:
    began = asyncio.Event()
    worker = _worker(server, asyncio.Event(), began)
    run = asyncio.create_task(worker.run_job(7))
    (await server.stream()).assign(assignment(7))
    await asyncio.wait_for(began.wait(), TIMEOUT)
    worker.stop()
    worker.stop()
    assert await asyncio.wait_for(run, TIMEOUT) is None
    assert server.results[0].HasField("release")
