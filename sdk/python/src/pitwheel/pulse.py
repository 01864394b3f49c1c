"""Heartbeats: what keeps the claims of a worker, and brings word of cancels and of its own death."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc.aio

from ._proto import pitwheel_pb2 as pb
from .backoff import Backoff
from .core import Core
from .held import Stream
from .reporter import describe

log = logging.getLogger("pitwheel")

# Nobody waits longer than this for a heartbeat, and nobody sends them more often than this, whatever the server says.
EVERY_MAX = 60.0
EVERY_MIN = 0.02
# A heartbeat that failed is sent again within this time.
AGAIN_MAX = 1.0

SendHeartbeat = Callable[[pb.HeartbeatRequest, float], Awaitable[pb.HeartbeatResponse]]


class Pulse:
    """Sends heartbeats as often as the server says, and at once when a stream ended or its last job was reported."""

    def __init__(self, core: Core, send: SendHeartbeat, drain: Callable[[], None]) -> None:
        self._core = core
        self._send = send
        self._drain = drain
        self._every = EVERY_MAX
        self._is_closing = False

    def set_every(self, seconds: float) -> None:
        self._every = min(max(seconds, EVERY_MIN), EVERY_MAX)

    def close(self) -> None:
        """Lets `run` return once the server knows that nothing is held."""
        self._is_closing = True
        self._core.news.set()

    async def run(self) -> None:
        backoff = Backoff(longest=AGAIN_MAX)
        while True:
            self._core.news.clear()
            if streams := list(self._core.streams):
                try:
                    await self._beat(streams)
                except grpc.aio.AioRpcError as error:
                    log.warning("cannot send a heartbeat, will try again: %s", describe(error))
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
            if self._is_closing and not self._core.streams:
                return
            timer = asyncio.get_running_loop().call_later(self._every, self._core.news.set)
            await self._core.news.wait()
            timer.cancel()

    async def _beat(self, streams: list[Stream]) -> None:
        request = pb.HeartbeatRequest()
        let_go = []
        for stream in streams:
            if stream.is_open:
                request.worker_ids.append(stream.worker_id)
                continue
            ended = request.ended.add(worker_id=stream.worker_id)
            for job_id, fence in stream.held:
                ended.holding.add(job_id=job_id, fence=fence)
            if not stream.held:
                let_go.append(stream)
        # Its own deadline, so that one that hangs does not take the next ones along.
        response = await self._send(request, max(self._every, AGAIN_MAX))
        for stream in let_go:
            self._core.forget(stream)
        if response.cancelled:
            self._core.cancel((claim.job_id, claim.fence) for claim in response.cancelled)
        if response.draining_worker_ids:
            self._drain()
        dead = set(response.dead_worker_ids)
        for stream in streams:
            if stream.worker_id in dead and stream not in let_go:
                self._core.lost(stream)
