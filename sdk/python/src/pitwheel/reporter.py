"""Reports results and progress to the server: in batches, each repeated until the server answers."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping

import grpc.aio

from ._proto import pitwheel_pb2 as pb
from .attempt import failed
from .backoff import Backoff
from .channel import BATCH_BYTES_MAX, status_text
from .refusal import is_too_slow, refusal
from .stream import HeldJob

log = logging.getLogger("pitwheel")

# The server refuses larger requests.
RESULTS_MAX = 1000
# Results that arrive within this time go in one request.
LINGER_SECONDS = 0.001
# A report without a response in this time is sent again.
CALL_SECONDS_MAX = 10.0
# The interval at which progress is sent.
PROGRESS_INTERVAL_SECONDS = 1.0
# The result of a job that another transaction has locked is reported again after this time.
LOCKED_SECONDS = 0.2

SendReport = Callable[[pb.ReportResultRequest, float], Awaitable[pb.ReportResultResponse]]


class Report:
    """A result to send."""

    __slots__ = ("held", "pauses", "result")

    def __init__(self, held: HeldJob, result: pb.Result, pauses: Backoff | None = None) -> None:
        self.held = held
        self.result = result
        #: The pauses between the failures that take the place of a refused result. `None`: none was refused.
        self.pauses = pauses
        job_id, fence = held.claim
        result.claim.job_id = job_id
        result.claim.fence = fence
        result.claim.worker_id = held.stream.worker_id
        result.completed_by_handler = self.is_completed_by_handler

    @property
    def is_progress(self) -> bool:
        return self.result.HasField("progress")

    @property
    def is_completed_by_handler(self) -> bool:
        return self.held.attempt.context._is_completed_by_handler


class Reporter:
    """Sends one request at a time. Results that arrive meanwhile form the next batch, so batches grow with the load."""

    def __init__(
        self, send: SendReport, running: Mapping[HeldJob, object], settled: Callable[[HeldJob], None]
    ) -> None:
        """`settled` is called for each job whose result was written or lost."""
        self._send = send
        self._running = running
        self._settled = settled
        #: Results to report. Bounded by the slots: a job is held until its result is answered.
        self._queue: deque[Report] = deque()
        #: The newest progress of each running job, if it is yet to be reported.
        self._progress: OrderedDict[HeldJob, pb.Progress] = OrderedDict()
        self._has_work = asyncio.Event()
        self._is_closing = False
        #: How many results wait to be reported again: of locked jobs, and in the place of refused ones.
        self._set_aside = 0

    def put(self, held: HeldJob, result: pb.Result) -> None:
        # The result carries the progress.
        self._progress.pop(held, None)
        self._queue.append(Report(held, result))
        self._has_work.set()

    def close(self) -> None:
        """Lets `run` return after all results are reported."""
        self._is_closing = True
        self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            # If no job is running, no other result can arrive: send at once.
            if self._running and len(self._queue) < RESULTS_MAX:
                await asyncio.sleep(LINGER_SECONDS)
            if batch := self._take():
                await self._report(batch)
            if not self._queue and not self._progress:
                if self._is_closing and not self._set_aside:
                    return
                self._has_work.clear()

    async def run_progress(self) -> None:
        """Collects the progress of all running jobs once a second and sends it."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
            for held in list(self._running):
                progress = held.attempt.context._progress_to_send()
                if progress is not None and not held.is_finished:
                    self._progress[held] = progress
                    self._has_work.set()

    def _take(self) -> list[Report]:
        """The next batch. Results come first, because they free slots at the server."""
        batch: list[Report] = []
        size = 0
        while self._queue and len(batch) < RESULTS_MAX:
            size += self._queue[0].result.ByteSize()
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(self._queue.popleft())
        while self._progress and len(batch) < RESULTS_MAX and size < BATCH_BYTES_MAX:
            held, progress = self._progress.popitem(last=False)
            report = Report(held, pb.Result(progress=progress))
            # The handler's transaction settles the job; after that this would be answered as lost.
            if report.is_completed_by_handler:
                continue
            size += report.result.ByteSize()
            batch.append(report)
        return batch

    async def _report(self, batch: list[Report], is_repeated: bool = False) -> None:
        """Reports until the server answers. `is_repeated`: a report before this one may have been written."""
        request = pb.ReportResultRequest(results=[report.result for report in batch])
        backoff = Backoff()
        while True:
            try:
                response = await self._send(request, CALL_SECONDS_MAX)
                break
            except grpc.aio.AioRpcError as error:
                size = request.ByteSize()
                problem = refusal(error, size)
                is_repeated = is_repeated or problem is None
                if len(batch) > 1 and (problem or is_too_slow(error, size)):
                    # Until the result that is the reason stands alone.
                    middle = len(batch) // 2
                    await self._report(batch[:middle], is_repeated)
                    await self._report(batch[middle:], is_repeated)
                    return
                if problem:
                    self._replace(batch[0], problem)
                    return
                log.warning("cannot report %d results, retrying: %s", len(batch), status_text(error))
            await asyncio.sleep(backoff.next())
        for index, report in enumerate(batch):
            written = response.written[index] if index < len(response.written) else pb.WRITTEN_YES
            if written == pb.WRITTEN_REFUSED:
                problem = response.problems[index] if index < len(response.problems) else "it is invalid"
                self._replace(report, f"the server refused the result: {problem}")
                continue
            if written == pb.WRITTEN_LOCKED:
                # Progress is not repeated: the result carries the last one.
                if not report.is_progress:
                    self._put_later(report, LOCKED_SECONDS)
                continue
            if written == pb.WRITTEN_LOST:
                self._lost(report, is_repeated)
            if not report.is_progress:
                self._settled(report.held)

    def _put_later(self, report: Report, pause: float) -> None:
        """Reports a result after a pause. The others need not wait for it."""
        self._set_aside += 1
        asyncio.get_running_loop().call_later(pause, self._put_now, report)

    def _put_now(self, report: Report) -> None:
        self._set_aside -= 1
        self._queue.append(report)
        self._has_work.set()

    def _replace(self, report: Report, problem: str) -> None:
        """Reports a failed attempt in the place of a refused result, a little later. Its error is `problem`.

        The failure may be refused too, for as long as the reason lasts. Without an answer the job would stay running, and
        its lease be renewed, until this process ends.
        """
        job_id = report.held.claim[0]
        log.error("the report of job %d is not accepted: %s", job_id, problem)
        if report.is_progress:
            return
        failure = failed(problem)
        if report.result.HasField("last_progress"):
            failure.last_progress.CopyFrom(report.result.last_progress)
        pauses = report.pauses or Backoff()
        self._put_later(Report(report.held, failure, pauses), pauses.next())

    def _lost(self, report: Report, is_repeated: bool) -> None:
        # The handler's own transaction completed the job and is committed: the job is settled, not lost.
        if report.is_completed_by_handler:
            return
        job_id, fence = report.held.claim
        if report.is_progress:
            report.held.attempt.context.cancelled.set()
        # No warning for a job whose handler was not called, nor for a repeated request: the first one may have been written
        # without its response arriving, and the server may not remember it.
        elif not is_repeated and report.held.attempt.has_begun:
            log.warning(
                "lost: job %d (fence %d) was given to another worker or settled while it was running here",
                job_id,
                fence,
            )
