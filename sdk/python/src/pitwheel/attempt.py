"""Runs a handler and turns every way it can end into a result. No handler can stop the worker."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ._proto import pitwheel_pb2 as pb
from .context import Context
from .followers import check_followers
from .json_text import error_text, plain_text
from .result import result_to_json
from .span import from_duration, to_duration
from .verdict import Bury, Complete, Retry, Snooze

log = logging.getLogger("pitwheel")

# Longer messages are cut. The server cuts at the same length, because it stores up to 50 errors with a job.
ERROR_CHARS_MAX = 4000
# The Rust library has the same message.
NOT_COMMITTED = "the transaction in which the handler completed the job was not committed"
# How long a handler may clean up after its timeout, before the attempt is reported although the handler still runs.
CLEANUP_SECONDS_MAX = 5.0


@dataclass(frozen=True)
class Handler:
    """The function of a kind. With `forget`, a completed job without a result leaves no history."""

    call: Callable[[Any, Context], Awaitable[Any]]
    forget: bool


class Attempt:
    """One run of a handler. Await `run` in a separate task: the timeout and `release` cancel that task."""

    __slots__ = (
        "_expired",
        "_releasing",
        "_task",
        "_timer",
        "context",
        "handler",
        "on_overdue",
        "payload",
        "timeout",
    )

    def __init__(self, handler: Handler | None, assignment: pb.Assignment) -> None:
        self.handler = handler
        self.context = Context(assignment, keeps_history=handler is None or not handler.forget)
        self.payload: str = assignment.payload
        self.timeout = from_duration(assignment.timeout) if assignment.HasField("timeout") else None
        #: Called if the handler still runs some time after its timeout, because it caught the cancellation.
        self.on_overdue: Callable[[], None] = lambda: None
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False
        self._releasing = False

    @property
    def has_begun(self) -> bool:
        """The handler was called."""
        return self._task is not None

    async def run(self) -> pb.Result:
        """Runs the handler and returns how the attempt ended. The caller adds the claim."""
        # The server sends only the kinds in the request. If it sends another one, a different worker must run the job.
        if self.handler is None or self._releasing:
            return released()
        try:
            payload = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            return failed(f"the payload is not JSON: {error}", pb.FAILURE_CAUSE_PAYLOAD)
        self._task = asyncio.current_task()
        if self.timeout is None:
            return await self._call(self.handler, payload)
        self._timer = asyncio.get_running_loop().call_later(self.timeout, self._expire)
        try:
            return await self._call(self.handler, payload)
        finally:
            self._timer.cancel()

    def release(self) -> None:
        """Stops the handler. If the handler still returns, its result counts; otherwise the job is released."""
        self._releasing = True
        if self._task is not None:
            self._task.cancel()

    def timed_out(self) -> pb.Result:
        return failed(f"the attempt did not finish within {self.timeout:g} s", pb.FAILURE_CAUSE_TIMEOUT)

    def _expire(self) -> None:
        if self._task is None or self._releasing:
            return
        self._expired = True
        self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(CLEANUP_SECONDS_MAX, self.on_overdue)

    async def _call(self, handler: Handler, payload: Any) -> pb.Result:
        try:
            value = await handler.call(payload, self.context)
        except (Snooze, Retry, Bury) as verdict:
            return self.timed_out() if self._expired else self._unless_committed(raised(verdict))
        except (GeneratorExit, KeyboardInterrupt):
            raise
        # BaseException, because SystemExit and CancelledError from a handler must not stop the worker.
        except BaseException as error:
            if self._expired:
                return self.timed_out()
            if self._releasing:
                return released()
            log.warning("job %d of kind `%s` failed", self.context.id, self.context.kind, exc_info=error)
            return failed(error_text(error))
        finally:
            followers = self.context._end()
        # The handler caught the cancellation and returned: too late all the same.
        if self._expired:
            return self.timed_out()
        return self._unless_committed(completed(value, followers, handler.forget))

    def _unless_committed(self, result: pb.Result) -> pb.Result:
        """What the result means if the handler completed the job in its own transaction.

        If that transaction was committed, the job is gone, and nothing is written for what is reported. If not, the
        job is still held and the effects of the handler do not exist: the attempt has failed.
        """
        return failed(NOT_COMMITTED) if self.context._is_completed_by_handler else result


def raised(verdict: Snooze | Retry | Bury) -> pb.Result:
    if isinstance(verdict, Snooze):
        return pb.Result(snooze=pb.Snooze(delay=to_duration(verdict.delay)))
    if isinstance(verdict, Retry):
        return failed(verdict.reason, retry_after=to_duration(verdict.after))
    return pb.Result(bury=pb.Bury(reason=plain_text(verdict.reason, ERROR_CHARS_MAX)))


def completed(value: Any, followers: list[pb.NewJob], forget: bool) -> pb.Result:
    """The job is done. If its result, its followers or its next run cannot be stored, the attempt has failed instead."""
    found, next_at = None, None
    try:
        if isinstance(value, Complete):
            found, next_at = value._next_run()
            value, followers = value.result, followers + value._followers
        check_followers(followers)
        result = None if value is None else result_to_json(value)
    except (TypeError, ValueError) as error:
        return failed(str(error))
    return pb.Result(
        complete=pb.Complete(result=result, forget=forget, then=followers, found=found, next_at=next_at)
    )


def failed(
    message: str,
    cause: pb.FailureCause = pb.FAILURE_CAUSE_ERROR,
    retry_after: Any = None,
) -> pb.Result:
    error = plain_text(message, ERROR_CHARS_MAX)
    return pb.Result(fail=pb.Fail(error=error, cause=cause, retry_after=retry_after))


def released() -> pb.Result:
    return pb.Result(release=pb.Release())
