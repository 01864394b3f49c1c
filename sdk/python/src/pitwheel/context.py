"""What a handler knows and may say about the job it runs."""

import asyncio
import json
import math
from typing import Any

from ._proto import pitwheel_pb2 as pb
from .json_text import plain_text

# A note is one line for a person.
NOTE_CHARS_MAX = 500


class Context:
    """One attempt at one job."""

    __slots__ = (
        "_metadata",
        "_progress",
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

    def __init__(self, assignment: pb.Assignment) -> None:
        #: The job's id: the idempotency key for effects outside the database.
        self.id: int = assignment.job_id
        #: Grows with each claim of the job. Hand it to outside systems that can refuse lower numbers.
        self.fence: int = assignment.fence
        self.kind: str = assignment.kind
        self.queue: str = assignment.queue
        #: Counted from 1.
        self.attempt: int = assignment.attempt
        self.max_attempts: int = assignment.max_attempts
        self.key: str | None = assignment.key if assignment.HasField("key") else None
        #: The W3C trace context of whoever enqueued the job.
        self.traceparent: str | None = assignment.traceparent if assignment.HasField("traceparent") else None
        self.tracestate: str | None = assignment.tracestate if assignment.HasField("tracestate") else None
        #: Set once somebody asked to cancel the job, or it was given to another worker. What the handler does then
        #: decides: to return still completes the job, to raise leaves it cancelled.
        self.cancelled = asyncio.Event()
        self._metadata: str | None = assignment.metadata if assignment.HasField("metadata") else None
        self._progress: pb.Progress | None = None

    @property
    def metadata(self) -> Any:
        """What was enqueued beside the payload; `None` if nothing was."""
        return None if self._metadata is None else json.loads(self._metadata)

    def progress(self, fraction: float, note: str = "") -> None:
        """Says how far the job is, from 0 to 1. Sent about once a second, the last one wins.

        May be called from any thread.
        """
        fraction = min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else 0.0
        self._progress = pb.Progress(fraction=fraction, note=plain_text(note, NOTE_CHARS_MAX))

    def _take_progress(self) -> pb.Progress | None:
        # Looking first: taking from a job that said nothing would drop what another thread says between the two.
        if self._progress is None:
            return None
        progress, self._progress = self._progress, None
        return progress
