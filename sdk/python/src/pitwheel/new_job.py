"""A job to enqueue, and its message in the gRPC contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ._proto import pitwheel_pb2 as pb
from .json_text import to_json
from .span import Span, to_duration, to_timestamp

#: The name of a lane.
Lane = str | Sequence[str | int | bool | None]


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to enqueue."""

    #: The name that selects the handler.
    kind: str
    #: Any JSON value. `None`: an empty object.
    payload: Any = None
    queue: str = "default"
    #: The earliest start; needs a time zone. `None`: now. Give `run_at` or `delay`, not both.
    run_at: datetime | None = None
    #: The earliest start, counted from now by the database's clock. `None`: no delay.
    delay: Span | None = None
    #: -9 to 9. Higher priorities run first.
    priority: int = 0
    #: After this many failed attempts the job is dead. 1 to 1,000.
    max_attempts: int = 20
    #: How long one attempt may run. `None`: no limit.
    timeout: Span | None = None
    #: At most one live job per kind and key: if there is one already, that job is kept and nothing is added.
    key: str | None = None
    #: Any JSON value that is stored beside the payload. `None`: no metadata.
    metadata: Any = None
    #: A string, or a list of strings, integers, booleans and `None`. Jobs of one lane run one at a time, in the order in
    #: which they were enqueued. `None`: no lane.
    lane: Lane | None = None
    #: While this job waits for its time (a delay, or the next attempt), others of its lane may run.
    lane_pass: bool = False


def to_proto(job: NewJob) -> pb.NewJob:
    """Raises `TypeError` or `ValueError` for a job that is invalid in itself. The server checks the rest."""
    if not isinstance(job, NewJob):
        raise TypeError(f"`{job!r:.80}` is not a job: give a `NewJob`")
    if job.run_at is not None and job.delay is not None:
        raise ValueError("`run_at` and `delay` are both given: give one of them")
    return pb.NewJob(
        kind=job.kind,
        payload=to_json({} if job.payload is None else job.payload),
        queue=job.queue,
        run_at=None if job.run_at is None else to_timestamp(job.run_at, "run_at"),
        delay=None if job.delay is None else to_duration(job.delay),
        priority=job.priority,
        max_attempts=job.max_attempts,
        timeout=None if job.timeout is None else to_duration(job.timeout),
        key=job.key,
        metadata=None if job.metadata is None else to_json(job.metadata),
        lane=None if job.lane is None else to_json(job.lane),
        lane_pass=job.lane_pass,
    )
