"""The context of a handler: the job it runs, its progress, its followers, and requests to cancel it."""

import asyncio
import math
from copy import deepcopy
from typing import Any

from ._proto import pitwheel_pb2 as pb
from .followers import add_followers, add_step
from .json_text import from_json, plain_text
from .new_job import Lane, NewJob
from .recurrence import Recurrence, recurrence_from_proto
from .step import CurrentStep, step_from_proto

# A note is one line of text. The server cuts at the same length.
NOTE_CHARS_MAX = 500


class Context:
    """One attempt of one job. Every handler receives it as its second argument."""

    __slots__ = (
        "_followers",
        "_has_ended",
        "_is_completed_by_handler",
        "_keeps_history",
        "_lane",
        "_metadata",
        "_progress",
        "_recurrence",
        "_sent_progress",
        "_step",
        "_step_message",
        "_worker_id",
        "attempt",
        "cancelled",
        "fence",
        "id",
        "key",
        "kind",
        "max_attempts",
        "queue",
        "traceparent",
        "tracestate",
    )

    def __init__(self, assignment: pb.Assignment, keeps_history: bool = True) -> None:
        #: The id of the job. Use it as the idempotency key for effects outside the database.
        self.id: int = assignment.job_id
        #: A number that grows with each claim of the job. Pass it to systems that can refuse writes with a lower number.
        self.fence: int = assignment.fence
        self.kind: str = assignment.kind
        self.queue: str = assignment.queue
        #: The number of this attempt, counted from 1.
        self.attempt: int = assignment.attempt
        self.max_attempts: int = assignment.max_attempts
        self.key: str | None = assignment.key if assignment.HasField("key") else None
        #: The W3C trace context that the job was enqueued with. `None`: it had none.
        self.traceparent: str | None = assignment.traceparent if assignment.HasField("traceparent") else None
        self.tracestate: str | None = assignment.tracestate if assignment.HasField("tracestate") else None
        #: Set when a cancel of the job was requested, or when the claim is lost. The handler decides what to do: if it
        #: returns, the job is done; if it raises, the job is cancelled.
        self.cancelled = asyncio.Event()
        # Read when the handler asks for them: what Python cannot read must fail this attempt, not end the stream. Messages
        # are copied, because a part of a message keeps the whole in memory: all jobs that arrived with this one.
        self._lane: str | None = assignment.lane if assignment.HasField("lane") else None
        self._metadata: str | None = assignment.metadata if assignment.HasField("metadata") else None
        self._recurrence: pb.Recurrence | None = (
            deepcopy(assignment.recurrence) if assignment.HasField("recurrence") else None
        )
        self._step_message: pb.CurrentStep | None = (
            deepcopy(assignment.step) if assignment.HasField("step") else None
        )
        self._step: CurrentStep | None = None
        self._progress: pb.Progress | None = None
        self._sent_progress: pb.Progress | None = None
        self._followers: list[pb.NewJob] = []
        self._has_ended = False
        self._is_completed_by_handler = False
        self._keeps_history = keeps_history
        #: The worker that holds the job. 0: the server does not name it.
        self._worker_id: int = assignment.worker_id

    @property
    def lane(self) -> Lane | None:
        """The name of its lane: a string, or a list of strings, integers, booleans and `None`. `None`: it has no lane."""
        return None if self._lane is None else from_json(self._lane, "the lane")

    @property
    def metadata(self) -> Any:
        """The metadata that the job was enqueued with. `None`: it had none."""
        return None if self._metadata is None else from_json(self._metadata, "the metadata")

    @property
    def recurrence(self) -> Recurrence | None:
        """The recurring job that this job is a run of. `None`: it is none."""
        return None if self._recurrence is None else recurrence_from_proto(self._recurrence)

    @property
    def step(self) -> CurrentStep | None:
        """The step of a pipeline that this job is. `None`: it is none."""
        # Kept, because the results of its parents can have 1 MiB. Other threads may read it at the same time.
        message = self._step_message
        if message is not None:
            self._step = step_from_proto(message)
            self._step_message = None
        return self._step

    def progress(self, fraction: float, note: str = "") -> None:
        """Reports how far the attempt is, from 0 to 1, with a note of one line.

        The latest value is sent about once a second, and with the result if the attempt ends sooner; not after
        `pitwheel.complete`. The history keeps the note. May be called from any thread.
        """
        fraction = min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else 0.0
        self._progress = pb.Progress(fraction=fraction, note=plain_text(note, NOTE_CHARS_MAX))

    def then(self, *jobs: NewJob) -> None:
        """Adds followers: jobs that are enqueued when this job completes.

        They are written by the same statement that completes the job. If the claim is lost, none of them exists. If the
        handler raises (`Snooze`, `Retry`, `Bury` or any other exception), exceeds its timeout or is released, none of them
        is enqueued; the next attempt starts without followers.

        A key works as in `Client.enqueue`: if a live job with the same kind and key exists, that job is kept and nothing is
        added. At most 100 followers. Raises `TypeError` or `ValueError` for an invalid job or too many; then none of `jobs`
        is added. Call it from the handler, or from a thread that the handler waits for, and before `pitwheel.complete`.
        """
        self._check_then("then")
        add_followers(self._followers, jobs)

    def then_step(self, name: str, job: NewJob) -> None:
        """Adds a step to the pipeline of this job, after it, if the pipeline has none of this name.

        Like `then`, it exists if and only if the completion of this job is written. In a job that is no step it is the
        same as `then`. A step has no key.
        """
        self._check_then("then_step")
        add_step(self._followers, name, job)

    def _check_then(self, function: str) -> None:
        self._check_running(function)
        if self._is_completed_by_handler:
            raise RuntimeError(
                f"`pitwheel.complete` was called for job `{self.id}`: call `{function}` before it"
            )

    def _end(self) -> list[pb.NewJob]:
        """Returns the followers. `then` raises from now on, because further followers would not be sent."""
        self._has_ended = True
        return self._followers

    def _complete_by_handler(self) -> None:
        """The handler is about to complete the job in its own transaction. `then` raises from now on.

        May be called again: the handler can repeat a transaction that was rolled back.
        """
        self._check_running("complete")
        self._is_completed_by_handler = True

    def _check_running(self, function: str) -> None:
        if self._has_ended:
            raise RuntimeError(
                f"the attempt of job `{self.id}` has ended: call `{function}` before the handler returns"
            )

    def _progress_to_send(self) -> pb.Progress | None:
        """Returns the latest progress, if it was not returned before."""
        # Never cleared: that could drop a value that another thread sets between read and write.
        progress = self._progress
        if progress is self._sent_progress:
            return None
        self._sent_progress = progress
        return progress
