"""Heartbeats: they renew the leases, and their responses carry cancel requests, drain requests and dead workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc.aio

from ._proto import pitwheel_pb2 as pb
from .backoff import Backoff
from .channel import status_text
from .lease import now
from .runner import Runner
from .stream import Stream

log = logging.getLogger("pitwheel")

# Bounds of the interval that the server asks for.
INTERVAL_SECONDS_MAX = 60.0
INTERVAL_SECONDS_MIN = 0.02
# The server refuses a heartbeat that names more streams.
STREAMS_MAX = 1000
# A failed heartbeat is sent again within this time.
RETRY_SECONDS_MAX = 1.0

SendHeartbeat = Callable[[pb.HeartbeatRequest, float], Awaitable[pb.HeartbeatResponse]]


class Heartbeats:
    """Sends heartbeats at the interval that the server asks for.

    One is sent at once when a stream opens or ends, and when the last job of an ended stream is reported.
    """

    def __init__(self, runner: Runner, send: SendHeartbeat, drain: Callable[[], None]) -> None:
        self._runner = runner
        self._send = send
        self._drain = drain
        self._interval = INTERVAL_SECONDS_MAX
        self._is_closing = False

    def set_interval(self, seconds: float) -> None:
        self._interval = min(max(seconds, INTERVAL_SECONDS_MIN), INTERVAL_SECONDS_MAX)

    def close(self) -> None:
        """Lets `run` return after the server has received that this process holds no jobs."""
        self._is_closing = True
        self._runner.heartbeat_due.set()

    async def run(self) -> None:
        backoff = Backoff(longest=RETRY_SECONDS_MAX)
        while True:
            self._runner.heartbeat_due.clear()
            if streams := list(self._runner.streams):
                # The open ones first: only they get jobs.
                streams.sort(key=lambda stream: not stream.is_open)
                try:
                    for begin in range(0, len(streams), STREAMS_MAX):
                        await self._send_heartbeat(streams[begin : begin + STREAMS_MAX])
                except grpc.aio.AioRpcError as error:
                    log.warning("cannot send a heartbeat, retrying: %s", status_text(error))
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
            if self._is_closing and not self._runner.streams:
                return
            timer = asyncio.get_running_loop().call_later(self._interval, self._runner.heartbeat_due.set)
            await self._runner.heartbeat_due.wait()
            timer.cancel()

    async def _send_heartbeat(self, streams: list[Stream]) -> None:
        request = pb.HeartbeatRequest()
        finished = []
        for stream in streams:
            if stream.is_open:
                request.worker_ids.append(stream.worker_id)
                continue
            ended = request.ended.add(worker_id=stream.worker_id)
            for job_id, fence in stream.held:
                ended.holding.add(job_id=job_id, fence=fence, worker_id=stream.worker_id)
            if not stream.held:
                finished.append(stream)
        # With a timeout, so that a call that hangs does not delay the next heartbeats.
        sent_at = now()
        response = await self._send(request, max(self._interval, RETRY_SECONDS_MAX))
        for stream in finished:
            self._runner.forget(stream)
        if response.cancelled:
            self._runner.cancel((claim.job_id, claim.fence) for claim in response.cancelled)
        if response.draining_worker_ids:
            self._drain()
        dead = set(response.dead_worker_ids)
        for stream in streams:
            if stream.worker_id not in dead:
                stream.lease.renew(sent_at)
            elif stream not in finished:
                self._runner.lost(stream)
