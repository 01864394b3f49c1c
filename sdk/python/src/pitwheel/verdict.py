"""What a handler returns to complete its job with followers, or raises to snooze, retry or bury it."""

from datetime import datetime
from operator import index
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from ._proto import pitwheel_pb2 as pb
from .followers import add_followers, add_step
from .new_job import NewJob
from .span import Span, check_span, to_timestamp


class Complete:
    """Completes the job, with a result and with followers. A handler returns it.

    ```python
    return Complete({"pages": 3}).then(NewJob(kind="index", payload={"document": 7}))
    ```

    A handler without followers can return the result itself.
    """

    __slots__ = ("_followers", "found", "next_at", "result")

    def __init__(
        self, result: Any = None, *, found: int | None = None, next_at: datetime | None = None
    ) -> None:
        """`result`: any JSON value, stored with the job. `None`: no result.

        For a run of a recurring job, `found` is how many new things it found: with an adaptive cadence, a value above 0
        shortens the interval, and 0 lengthens it. `None`: it stays. `next_at` is the time of the next run, instead of the
        one by its cadence; it needs a time zone. Raises `TypeError` or `ValueError` if one of them is invalid.
        """
        self.result = result
        self.found = found
        self.next_at = next_at
        self._followers: list[pb.NewJob] = []
        # Checked here too, inside the handler: the traceback shows the line.
        self._next_run()

    def then(self, *jobs: NewJob) -> "Complete":
        """Adds followers, like `Context.then`, and returns this object. Those of the context come first."""
        add_followers(self._followers, jobs)
        return self

    def then_step(self, name: str, job: NewJob) -> "Complete":
        """Adds a step to the pipeline, like `Context.then_step`, and returns this object."""
        add_step(self._followers, name, job)
        return self

    def _next_run(self) -> tuple[int | None, Timestamp | None]:
        """`found` and `next_at` as they are sent. Raises `TypeError` or `ValueError` if one of them is invalid."""
        found = None if self.found is None else _check_found(self.found)
        return found, None if self.next_at is None else to_timestamp(self.next_at, "next_at")


def _check_found(found: int) -> int:
    try:
        number = index(found)
    except TypeError:
        raise TypeError(f"found `{found!r:.80}` is not an integer") from None
    if number < 0 or number.bit_length() > 64:
        raise ValueError("found is negative, or has more than 64 bits")
    return number


class Verdict(Exception):
    """The base class of `Snooze`, `Retry` and `Bury`. None of them enqueues the followers of `Context.then`."""


class Snooze(Verdict):
    """Runs the job again after `delay`. This attempt is not counted."""

    def __init__(self, delay: Span) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = check_span(delay)


class Retry(Verdict):
    """Fails the attempt, and runs the job again after `after` instead of the usual backoff.

    If this was the last attempt, the job is dead.
    """

    def __init__(self, after: Span, reason: object) -> None:
        super().__init__(reason)
        self.after = check_span(after)
        self.reason = str(reason)


class Bury(Verdict):
    """Fails the job for good: it is dead, however many attempts are left."""

    def __init__(self, reason: object) -> None:
        super().__init__(reason)
        self.reason = str(reason)
