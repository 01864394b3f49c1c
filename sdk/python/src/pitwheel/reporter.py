"""Reporting how jobs ended, and how far they are: in batches, again until answered."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import grpc
import grpc.aio

from ._proto import pitwheel_pb2 as pb
from .attempt import failed
from .backoff import Backoff
from .channel import BATCH_BYTES_MAX, status_text
from .stream import HeldJob

log = logging.getLogger("pitwheel")

# As many as the server takes in one request.
RESULTS_MAX = 1000
# What ends within this time goes in one request.
LINGER_SECONDS = 0.001
# A report whose answer does not come is made again after this long.
CALL_SECONDS_MAX = 10.0
# How often progress is sent.
PROGRESS_INTERVAL_SECONDS = 1.0
# Something in the batch cannot be stored, and never will.
REFUSED_CODES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)

SendReport = Callable[[pb.ReportResultRequest, float], Awaitable[pb.ReportResultResponse]]


class Report:
    """A result on its way to the server."""

    __slots__ = ("held", "is_substitute", "result")

    def __init__(self, held: HeldJob, result: pb.Result, is_substitute: bool = False) -> None:
        self.held = held
        self.result = result
        #: It stands for a result that was refused.
        self.is_substitute = is_substitute
        job_id, fence = held.claim
        result.claim.job_id = job_id
        result.claim.fence = fence

    @property
    def is_progress(self) -> bool:
        return self.result.HasField("progress")


class Reporter:
    """One request at a time: what ends meanwhile is the next batch, so that batches grow with the load."""

    def __init__(
        self, send: SendReport, running: Mapping[HeldJob, object], settled: Callable[[HeldJob], None]
    ) -> None:
        """`settled` is called for each job whose ending was written, or refused for good."""
        self._send = send
        self._running = running
        self._settled = settled
        self._queue: deque[Report] = deque()
        self._has_work = asyncio.Event()
        self._is_closing = False

    def put(self, held: HeldJob, result: pb.Result) -> None:
        self._queue.append(Report(held, result))
        self._has_work.set()

    def close(self) -> None:
        """Lets `run` return once everything is reported."""
        self._is_closing = True
        self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            # With nothing running there is nothing to wait for.
            if self._running and len(self._queue) < RESULTS_MAX:
                await asyncio.sleep(LINGER_SECONDS)
            if batch := self._take():
                await self._report(batch)
            if not self._queue:
                if self._is_closing:
                    return
                self._has_work.clear()

    async def run_progress(self) -> None:
        """Sends what handlers said, once a second. It looks at all that run, so that to say it is cheap in any thread."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
            for held in list(self._running):
                if (progress := held.attempt.context._take_progress()) is not None:
                    self.put(held, pb.Result(progress=progress))

    def _take(self) -> list[Report]:
        batch: list[Report] = []
        size = 0
        while self._queue and len(batch) < RESULTS_MAX:
            report = self._queue[0]
            # The ending of the job says more than how far it was, and would make this look lost.
            if report.is_progress and report.held.is_finished:
                self._queue.popleft()
                continue
            size += report.result.ByteSize()
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _report(self, batch: list[Report]) -> None:
        request = pb.ReportResultRequest(results=[report.result for report in batch])
        backoff = Backoff()
        tries = 0
        while True:
            tries += 1
            try:
                response = await self._send(request, CALL_SECONDS_MAX)
                break
            except grpc.aio.AioRpcError as error:
                if error.code() in REFUSED_CODES:
                    await self._refused(batch, error)
                    return
                log.warning("cannot report %d results, will try again: %s", len(batch), status_text(error))
            await asyncio.sleep(backoff.next())
        for report, written in zip(batch, response.written, strict=False):
            if written == pb.WRITTEN_LOST:
                self._lost(report, tries)
        for report in batch:
            if not report.is_progress:
                self._settled(report.held)

    async def _refused(self, batch: list[Report], error: grpc.aio.AioRpcError) -> None:
        """Halves the batch until the bad one stands alone; its job has failed then, with what the server said of it."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._report(batch[:middle])
            await self._report(batch[middle:])
            return
        report = batch[0]
        job_id = report.held.claim[0]
        log.error("the server refused what was reported of job %d: %s", job_id, status_text(error))
        if report.is_progress:
            return
        if report.is_substitute:
            self._settled(report.held)
            return
        substitute = failed(f"the server refused the result: {error.details()}")
        await self._report([Report(report.held, substitute, is_substitute=True)])

    def _lost(self, report: Report, tries: int) -> None:
        job_id, fence = report.held.claim
        if report.is_progress:
            report.held.attempt.context.cancelled.set()
        # The second time it may be our own first report that was in the way.
        elif tries == 1:
            log.warning(
                "lost: job %d (fence %d) was given to another worker, or settled, while it ran here",
                job_id,
                fence,
            )
