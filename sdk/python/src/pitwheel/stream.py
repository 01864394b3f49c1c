"""What a worker holds: the jobs of each of its streams, until their reports are answered."""

from typing import Any

from .attempt import Attempt


class Stream:
    """A worker in the server's eyes: what came down one stream. It outlives the stream until the last job is reported."""

    def __init__(self, worker_id: int, call: Any) -> None:
        self.worker_id = worker_id
        self.call = call
        self.held: dict[tuple[int, int], HeldJob] = {}
        self.is_open = True
        #: Declared dead: its jobs were given to others.
        self.is_dead = False


class HeldJob:
    """A job that is this worker's until its report is answered."""

    __slots__ = ("attempt", "claim", "is_finished", "stream")

    def __init__(self, attempt: Attempt, stream: Stream) -> None:
        self.attempt = attempt
        self.claim = (attempt.context.id, attempt.context.fence)
        self.stream = stream
        #: It ended, and how is with the reporter.
        self.is_finished = False
