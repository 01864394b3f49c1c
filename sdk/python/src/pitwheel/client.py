"""The client: enqueues, reads and cancels jobs, and changes recurring jobs and pipelines, through a server."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, cast

import grpc
import grpc.aio

from ._proto import pitwheel_pb2 as pb
from ._proto.pitwheel_pb2_grpc import JobServiceStub, PipelineServiceStub, RecurringServiceStub
from .channel import BATCH_BYTES_MAX, Tls, open_channel, token_metadata
from .new_job import Lane, NewJob, to_proto
from .pipelines import Pipelines
from .recurring import RecurringJobs
from .span import Span, from_timestamp

# The server refuses larger requests.
ENQUEUE_MAX = 500
# A call without a response in this time fails with DEADLINE_EXCEEDED.
CALL_SECONDS_MAX = 30.0

State = Literal["waiting", "blocked", "running", "done", "dead", "cancelled"]
_STATES: dict[int, State] = {
    pb.JOB_STATE_WAITING: "waiting",
    pb.JOB_STATE_BLOCKED: "blocked",
    pb.JOB_STATE_RUNNING: "running",
    pb.JOB_STATE_DONE: "done",
    pb.JOB_STATE_DEAD: "dead",
    pb.JOB_STATE_CANCELLED: "cancelled",
}


@dataclass(frozen=True)
class Enqueued:
    """The answer to an enqueue."""

    id: int
    #: False: a live job with the same kind and key exists. `id` is the id of that job, and nothing was added.
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, live or finished, as the server read it."""

    id: int
    state: State
    kind: str
    queue: str
    priority: int
    #: The number of the current or last attempt, counted from 1. 0: not attempted yet.
    attempt: int
    max_attempts: int
    #: When the job is due, or was due last.
    run_at: datetime
    enqueued_at: datetime
    #: When the current or last attempt was claimed. `None`: the job is waiting, or was never claimed.
    claimed_at: datetime | None
    #: `None`: the job is live.
    finished_at: datetime | None
    key: str | None
    #: The name of its lane. `None`: no lane, or redacted.
    lane: Lane | None
    #: `None` if redacted.
    payload: Any
    #: `None`: no metadata, or redacted.
    metadata: Any
    #: How far the running attempt is, 0 to 1. `None`: not running, or not reported.
    progress: float | None
    #: The last note reported with the progress.
    note: str | None
    #: The errors of the last 50 failed attempts, oldest first.
    errors: list[Any]
    #: `None`: no result, or redacted.
    result: Any
    #: The job waits, or is blocked, and no live worker takes its kind.
    unserved: bool
    #: True: key, lane, note, payload, metadata, result and the messages of errors are withheld, because the kind is
    #: redacted and the token may not change jobs.
    redacted: bool


class Client:
    """A connection to a server, to enqueue, read and cancel jobs.

    A failed call raises `grpc.aio.AioRpcError` and is not repeated. After an error the job may or may not exist: to
    enqueue it again safely, give it a key.
    """

    def __init__(self, address: str, *, token: str | None = None, tls: Tls = False) -> None:
        self._address = address
        self._metadata = token_metadata(token)
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._jobs: Any = None
        self._recurring: Any = None
        #: The recurring jobs.
        self.recurring = RecurringJobs(self._call_recurring)
        #: The pipelines.
        self.pipelines = Pipelines(self._call_pipelines)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. The next call opens another one."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        queue: str = "default",
        run_at: datetime | None = None,
        delay: Span | None = None,
        priority: int = 0,
        max_attempts: int = 20,
        timeout: Span | None = None,
        key: str | None = None,
        metadata: Any = None,
        lane: Lane | None = None,
        lane_pass: bool = False,
    ) -> Enqueued:
        """Enqueues a job; `NewJob` describes the options. When this returns, the job is committed."""
        job = NewJob(
            kind=kind,
            payload=payload,
            queue=queue,
            run_at=run_at,
            delay=delay,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
            key=key,
            metadata=metadata,
            lane=lane,
            lane_pass=lane_pass,
        )
        return (await self.enqueue_many([job]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Enqueues jobs, at most 500 or 2 MiB in one request. Returns one answer per job, in the same order.

        When this returns, all jobs are committed. When it raises, some of them may exist: to repeat it safely, give the
        jobs keys.
        """
        enqueued: list[Enqueued] = []
        # Converts all jobs first: if one is invalid, none is enqueued.
        for batch in _batches([to_proto(job) for job in jobs]):
            response = await self._call("Enqueue", pb.EnqueueRequest(jobs=batch))
            enqueued.extend(Enqueued(job.job_id, job.is_new) for job in response.jobs)
        return enqueued

    async def get(self, job_id: int) -> Job | None:
        """Returns one job. `None`: no job has this id, or its history was pruned."""
        try:
            response = await self._call("GetJob", pb.GetJobRequest(job_id=job_id))
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return _from_proto(response.job)

    async def cancel(self, job_id: int) -> bool:
        """Cancels a job. True: it is cancelled. False: it is running, and its worker was asked to stop it.

        Raises `NOT_FOUND` if no live job has this id.
        """
        response = await self._call("CancelJob", pb.CancelJobRequest(job_id=job_id))
        return bool(response.at_once)

    async def _call(self, method: str, request: Any) -> Any:
        self._open()
        return await getattr(self._jobs, method)(request, timeout=CALL_SECONDS_MAX, metadata=self._metadata)

    async def _call_recurring(self, method: str, request: Any) -> Any:
        self._open()
        return await getattr(self._recurring, method)(
            request, timeout=CALL_SECONDS_MAX, metadata=self._metadata
        )

    async def _call_pipelines(self, method: str, request: Any) -> Any:
        self._open()
        return await getattr(self._pipelines, method)(
            request, timeout=CALL_SECONDS_MAX, metadata=self._metadata
        )

    def _open(self) -> None:
        # Not opened in __init__, because a channel belongs to the event loop that is running when it is created.
        if self._channel is None:
            self._channel = open_channel(self._address, self._tls)
            self._jobs = JobServiceStub(self._channel)
            self._recurring = RecurringServiceStub(self._channel)
            self._pipelines = PipelineServiceStub(self._channel)


def _batches(jobs: list[pb.NewJob]) -> Iterator[list[pb.NewJob]]:
    batch: list[pb.NewJob] = []
    size = 0
    for job in jobs:
        job_size = job.ByteSize()
        if batch and (len(batch) == ENQUEUE_MAX or size + job_size > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += job_size
    if batch:
        yield batch


def _from_proto(job: pb.Job) -> Job:
    def given(field: str) -> Any:
        return getattr(job, field) if job.HasField(cast(Any, field)) else None

    def parsed(field: str) -> Any:
        text = given(field)
        return None if text is None else json.loads(text)

    def time(field: str) -> datetime | None:
        stamp = given(field)
        return None if stamp is None else from_timestamp(stamp)

    return Job(
        id=job.id,
        state=_STATES[job.state],
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        run_at=from_timestamp(job.run_at),
        enqueued_at=from_timestamp(job.enqueued_at),
        claimed_at=time("claimed_at"),
        finished_at=time("finished_at"),
        key=given("key"),
        lane=parsed("lane"),
        payload=json.loads(job.payload) if job.payload else None,
        metadata=parsed("metadata"),
        progress=given("progress"),
        note=given("note"),
        errors=json.loads(job.errors) if job.errors else [],
        result=parsed("result"),
        unserved=job.unserved,
        redacted=job.redacted,
    )
