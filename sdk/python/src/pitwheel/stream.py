"""The streams of a worker, and the jobs held on each until their results are settled."""

from typing import Any

from .attempt import Attempt
from .lease import Lease


class Stream:
    """One stream, which the server registers as one worker. It is kept until its last job is reported."""

    def __init__(self, worker_id: int, call: Any, lease: Lease) -> None:
        self.worker_id = worker_id
        self.call = call
        self.lease = lease
        self.held: dict[tuple[int, int], HeldJob] = {}
        self.is_open = True
        #: The server declared the worker dead and gives its jobs to other workers.
        self.is_dead = False


class HeldJob:
    """A claimed job. It is held until the server answers its result."""

    __slots__ = ("attempt", "claim", "is_finished", "stream")

    def __init__(self, attempt: Attempt, stream: Stream) -> None:
        self.attempt = attempt
        #: Job id and fence.
        self.claim = (attempt.context.id, attempt.context.fence)
        self.stream = stream
        #: The attempt has ended, and its result was passed to the reporter.
        self.is_finished = False
