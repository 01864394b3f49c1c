"""Heartbeats name every stream, within the limits of the server."""

import asyncio

from fake_server import TIMEOUT

from pitwheel._proto import pitwheel_pb2 as pb
from pitwheel.heartbeat import Heartbeats
from pitwheel.lease import Lease, now
from pitwheel.runner import Runner
from pitwheel.stream import Stream


async def _no_report(request: pb.ReportResultRequest, timeout: float) -> pb.ReportResultResponse:
    raise AssertionError("nothing is reported")


async def more_streams_than_one_heartbeat_may_name_are_all_named_the_open_ones_first() -> None:
    runner = Runner({}, 1, _no_report)
    for worker_id in range(1, 2501):
        stream = Stream(worker_id, None, Lease(30, now()))
        stream.is_open = worker_id == 2500
        runner.opened(stream)
    requests: list[pb.HeartbeatRequest] = []
    all_named = asyncio.Event()

    async def send(request: pb.HeartbeatRequest, timeout: float) -> pb.HeartbeatResponse:
        requests.append(request)
        if sum(len(request.worker_ids) + len(request.ended) for request in requests) == 2500:
            all_named.set()
        return pb.HeartbeatResponse()

    heartbeats = Heartbeats(runner, send, lambda: None)
    run = asyncio.create_task(heartbeats.run())
    await asyncio.wait_for(all_named.wait(), TIMEOUT)
    run.cancel()

    assert [len(request.worker_ids) + len(request.ended) for request in requests] == [1000, 1000, 500]
    assert list(requests[0].worker_ids) == [2500]
