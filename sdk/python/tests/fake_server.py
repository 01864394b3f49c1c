"""A server under the control of the test, which sets its assignments and responses and reads the requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from pitwheel._proto import pitwheel_pb2 as pb
from pitwheel._proto.pitwheel_pb2_grpc import (
    JobServiceServicer,
    WorkerServiceServicer,
    add_JobServiceServicer_to_server,
    add_WorkerServiceServicer_to_server,
)
from pitwheel.span import to_duration

# In seconds. Reached only if something hangs.
TIMEOUT = 10.0
# What gRPC makes of the answer of a proxy that speaks HTTP only.
PROXY_413 = (grpc.StatusCode.UNKNOWN, "Received http2 header with status: 413")
# Every error of the server itself has a code of its own.
OF_THE_SERVER = (("pitwheel-error", "busy"),)


class FakeStream:
    """One stream that a worker opened."""

    def __init__(self, worker_id: int, request: pb.StreamJobsRequest) -> None:
        self.worker_id = worker_id
        self.request = request
        self.is_finished = asyncio.Event()
        self._events: asyncio.Queue[pb.StreamJobsResponse | grpc.StatusCode] = asyncio.Queue()

    def assign(self, *jobs: pb.Assignment) -> None:
        self.send(pb.StreamJobsResponse(assignments=pb.Assignments(jobs=jobs)))

    def send(self, response: pb.StreamJobsResponse) -> None:
        self._events.put_nowait(response)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self._events.put_nowait(code)

    async def next(self) -> pb.StreamJobsResponse | grpc.StatusCode:
        return await self._events.get()


class FakeServer(WorkerServiceServicer):  # type: ignore[misc]
    """The server that a worker connects to."""

    def __init__(self) -> None:
        self.address = ""
        self.lease = 30.0
        self.heartbeat_every = 0.05
        #: How many streams were asked for, also those without a Welcome.
        self.asked = 0
        self.streams: list[FakeStream] = []
        self.requests: list[pb.ReportResultRequest] = []
        self.heartbeats: list[pb.HeartbeatRequest] = []
        self.metadata: list[tuple[str, str]] = []
        #: The next streams, reports and heartbeats fail with these codes, in order.
        self.refuse_streams: list[grpc.StatusCode] = []
        self.refuse_reports: list[grpc.StatusCode] = []
        self.refuse_heartbeats: list[grpc.StatusCode] = []
        #: Reports with more bytes fail with `too_large`, as at a proxy in front of the server.
        self.bytes_max = 4 * 1024 * 1024
        self.too_large = PROXY_413
        #: Results that are answered with WRITTEN_REFUSED, each with what is wrong with it.
        self.problems: dict[int, str] = {}
        #: Jobs whose result is answered with WRITTEN_LOCKED once.
        self.locked: set[int] = set()
        #: A batch that contains such a result is refused.
        self.is_bad: Callable[[pb.Result], bool] = lambda _: False
        self.lost: set[int] = set()
        #: Jobs whose results were written before.
        self.already: set[int] = set()
        self.cancelled: list[pb.Claim] = []
        self.dead: list[int] = []
        self.draining: list[int] = []
        #: Streams are welcomed only while this is set.
        self.welcomes = asyncio.Event()
        self.welcomes.set()
        #: Reports are answered only while this is set.
        self.answers = asyncio.Event()
        self.answers.set()
        #: Heartbeats are answered only while this is set.
        self.answers_heartbeats = asyncio.Event()
        self.answers_heartbeats.set()
        self._changed = asyncio.Condition()
        self.jobs = FakeJobs()

    async def StreamJobs(
        self, request: pb.StreamJobsRequest, context: Any
    ) -> AsyncIterator[pb.StreamJobsResponse]:
        self.metadata.extend(context.invocation_metadata())
        if self.refuse_streams:
            await context.abort(self.refuse_streams.pop(0), "refused")
        self.asked += 1
        await self._change()
        await self.welcomes.wait()
        stream = FakeStream(len(self.streams) + 1, request)
        try:
            yield pb.StreamJobsResponse(
                welcome=pb.Welcome(
                    worker_id=stream.worker_id,
                    lease=to_duration(self.lease),
                    heartbeat_every=to_duration(self.heartbeat_every),
                )
            )
            self.streams.append(stream)
            await self._change()
            while True:
                event = await stream.next()
                if not isinstance(event, pb.StreamJobsResponse):
                    await context.abort(event, "the stream broke")
                    return
                yield event
        finally:
            stream.is_finished.set()

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        if self.refuse_heartbeats:
            await context.abort(self.refuse_heartbeats.pop(0), "refused")
        self.heartbeats.append(request)
        await self._change()
        await self.answers_heartbeats.wait()
        known = {*request.worker_ids, *(ended.worker_id for ended in request.ended)}
        return pb.HeartbeatResponse(
            cancelled=self.cancelled,
            dead_worker_ids=[dead for dead in self.dead if dead in known],
            draining_worker_ids=[draining for draining in self.draining if draining in known],
        )

    async def ReportResult(self, request: pb.ReportResultRequest, context: Any) -> pb.ReportResultResponse:
        self.requests.append(request)
        await self._change()
        await self.answers.wait()
        if request.ByteSize() > self.bytes_max:
            await context.abort(*self.too_large)
        if self.refuse_reports:
            await context.abort(self.refuse_reports.pop(0), "refused", OF_THE_SERVER)
        if any(self.is_bad(result) for result in request.results):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "it cannot be stored")
        written = [self._written(result) for result in request.results]
        problems = [self.problems.get(result.claim.job_id, "") for result in request.results]
        return pb.ReportResultResponse(
            written=written, problems=problems if pb.WRITTEN_REFUSED in written else []
        )

    def _written(self, result: pb.Result) -> pb.Written:
        job_id = result.claim.job_id
        if job_id in self.locked:
            self.locked.remove(job_id)
            return pb.WRITTEN_LOCKED
        if job_id in self.problems and result.HasField("complete"):
            return pb.WRITTEN_REFUSED
        if job_id in self.already:
            return pb.WRITTEN_ALREADY
        return pb.WRITTEN_LOST if job_id in self.lost else pb.WRITTEN_YES

    async def _change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, holds: Callable[[], Any]) -> Any:
        """Waits until `holds` is true, checking after each request. Returns the value of `holds`."""

        async def look() -> Any:
            async with self._changed:
                while not (found := holds()):
                    await self._changed.wait()
                return found

        return await asyncio.wait_for(look(), TIMEOUT)

    async def stream(self, number: int = 1) -> FakeStream:
        """The stream that was opened first (1), second (2), …"""
        await self.until(lambda: len(self.streams) >= number)
        return self.streams[number - 1]

    @property
    def results(self) -> list[pb.Result]:
        return [result for request in self.requests for result in request.results]

    async def result(self, job_id: int, outcome: str | None = None) -> pb.Result:
        """The first result reported for a job, or the first with that outcome."""

        def found() -> pb.Result | None:
            for result in self.results:
                if result.claim.job_id == job_id and outcome in (None, result.WhichOneof("outcome")):
                    return result
            return None

        result: pb.Result = await self.until(found)
        return result

    async def ended(self, worker_id: int, holding: list[tuple[int, int]]) -> pb.HeartbeatRequest:
        """The heartbeat that reports this stream as ended with exactly these claims held."""

        def matches(heartbeat: pb.HeartbeatRequest) -> bool:
            return any(
                ended.worker_id == worker_id
                and [(claim.job_id, claim.fence) for claim in ended.holding] == holding
                for ended in heartbeat.ended
            )

        heartbeat: pb.HeartbeatRequest = await self.until(
            lambda: next((heartbeat for heartbeat in self.heartbeats if matches(heartbeat)), None)
        )
        return heartbeat


class FakeJobs(JobServiceServicer):  # type: ignore[misc]
    """Records enqueue requests, and returns `job` for its id."""

    def __init__(self) -> None:
        self.requests: list[pb.EnqueueRequest] = []
        self.cancelled: list[int] = []
        self.job: pb.Job | None = None

    async def Enqueue(self, request: pb.EnqueueRequest, context: Any) -> pb.EnqueueResponse:
        self.requests.append(request)
        jobs = enumerate(request.jobs, 1)
        return pb.EnqueueResponse(
            jobs=[pb.Enqueued(job_id=n, is_new=not job.HasField("key")) for n, job in jobs]
        )

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:
        if self.job is None or self.job.id != request.job_id:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
        return pb.GetJobResponse(job=self.job)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:
        self.cancelled.append(request.job_id)
        return pb.CancelJobResponse(at_once=True)


@asynccontextmanager
async def fake_server(
    address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    server = grpc.aio.server()
    add_WorkerServiceServicer_to_server(fake, server)
    add_JobServiceServicer_to_server(fake.jobs, server)
    if credentials is not None:
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    fake.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(None)


async def some_heartbeats(server: FakeServer) -> None:
    """A worker that would release its jobs, or open a stream, has done it by then."""
    number = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > number + 3)


def assignment(job_id: int = 1, payload: str = "{}", **fields: Any) -> pb.Assignment:
    given = {"fence": 10 * job_id, "kind": "greet", "queue": "default", "attempt": 1, "max_attempts": 20}
    return pb.Assignment(job_id=job_id, payload=payload, **{**given, **fields})


def claim(job_id: int, fence: int | None = None) -> pb.Claim:
    return pb.Claim(job_id=job_id, fence=10 * job_id if fence is None else fence)
