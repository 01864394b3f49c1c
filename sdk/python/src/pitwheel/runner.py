"""Runs the jobs of a worker's streams, and keeps track of which of them are held."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from ._proto import pitwheel_pb2 as pb
from .attempt import Attempt, Handler, failed, released
from .json_text import error_text
from .reporter import Reporter, SendReport
from .slots import Slots
from .stream import HeldJob, Stream

log = logging.getLogger("pitwheel")

# How long a handler may run after it was cancelled at the end of the grace time.
CLEANUP_SECONDS_MAX = 5.0

# How long a job waits for a slot that another handler keeps. Then it is released, because another worker may be free.
WAITING_SECONDS_MAX = 5.0

#: A wait is over when this returns.
Limit: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Runner:
    """Runs assigned jobs, at most `slots` at a time, and passes each result to the reporter."""

    def __init__(self, handlers: Mapping[str, Handler], slots: int, send_report: SendReport) -> None:
        self.handlers = handlers
        self.free = slots
        self.slots = Slots(slots)
        self.streams: list[Stream] = []
        self.running: dict[HeldJob, asyncio.Task[None]] = {}
        #: Jobs that arrived while handlers that exceeded their timeout occupied the slots.
        self.waiting: deque[HeldJob] = deque()
        self.reporter = Reporter(send_report, self.running, self.settled)
        #: Set when the next heartbeat must be sent without waiting for the interval.
        self.heartbeat_due = asyncio.Event()
        self.is_stopping = False
        #: Set when a result was settled and nothing is held any more.
        self.is_idle = asyncio.Event()

    def opened(self, stream: Stream) -> None:
        self.streams.append(stream)
        self.heartbeat_due.set()

    def ended(self, stream: Stream) -> int:
        """Releases its jobs that wait for a slot. Returns how many of its jobs still run."""
        stream.is_open = False
        for held in [held for held in self.waiting if held.stream is stream]:
            self._release_waiting(held)
        self.heartbeat_due.set()
        return sum(held.stream is stream for held in self.running)

    def forget(self, stream: Stream) -> None:
        if stream in self.streams:
            self.streams.remove(stream)

    def assigned(self, stream: Stream, assignments: Iterable[pb.Assignment]) -> None:
        for assignment in assignments:
            held = HeldJob(Attempt(self.handlers.get(assignment.kind), assignment), stream)
            stream.held[held.claim] = held
            if self.free > 0:
                self._start(held)
            else:
                self.waiting.append(held)
                asyncio.get_running_loop().call_later(WAITING_SECONDS_MAX, self._release_waiting, held)

    def _release_waiting(self, held: HeldJob) -> None:
        if held in self.waiting:
            self.waiting.remove(held)
            self._finish(held, released())

    def _start(self, held: HeldJob) -> None:
        # After the process was stopped, or its event loop was blocked, for longer than the lease, jobs are read that were
        # sent before: others may run them now. That the worker is dead is known only after its next heartbeat.
        if held.stream.is_dead or held.stream.lease.has_ended():
            context = held.attempt.context
            log.warning(
                "released: job %d of kind `%s` arrived too late for its lease", context.id, context.kind
            )
            self._finish(held, released())
            return
        self.free -= 1
        held.attempt.on_overdue = partial(self._overdue, held)
        # Not `create_task`: with eager tasks, a handler that waits for nothing would end before it is in `running`.
        self.running[held] = asyncio.Task(self._run(held), loop=asyncio.get_running_loop())

    async def _run(self, held: HeldJob) -> None:
        try:
            result = await held.attempt.run()
        except Exception as error:
            # A job without a result would be held, and its lease renewed, until this process ends.
            context = held.attempt.context
            log.error("job %d of kind `%s` ended without a result", context.id, context.kind, exc_info=error)
            result = failed(f"the attempt ended without a result: {error_text(error)}")
        finally:
            del self.running[held]
            self.free += 1
            if not held.stream.is_open:
                self.slots.freed()
            while self.waiting and self.free > 0:
                self._start(self.waiting.popleft())
        self._finish(held, result)

    def _overdue(self, held: HeldJob) -> None:
        """Reports an attempt whose handler goes on after its timeout. The handler keeps its slot."""
        context = held.attempt.context
        log.warning(
            "job %d of kind `%s` has failed by its timeout, but its handler still runs and keeps its slot",
            context.id,
            context.kind,
        )
        context._end()
        self._finish(held, held.attempt.timed_out())

    def _finish(self, held: HeldJob, result: pb.Result) -> None:
        if held.is_finished:
            return
        held.is_finished = True
        if (progress := held.attempt.context._progress) is not None:
            result.last_progress.CopyFrom(progress)
        self.reporter.put(held, result)

    def settled(self, held: HeldJob) -> None:
        """The result was written or lost: this worker no longer holds the job."""
        stream = held.stream
        stream.held.pop(held.claim, None)
        if not stream.is_open and not stream.held:
            self.heartbeat_due.set()
        if not any(one.held for one in self.streams):
            self.is_idle.set()

    def abandon(self) -> None:
        """Drops jobs that could not be reported. The next heartbeat makes the server release those it still knows."""
        for stream in self.streams:
            if stream.held:
                log.warning(
                    "%d jobs of worker %d could not be reported and may run again",
                    len(stream.held),
                    stream.worker_id,
                )
                stream.held.clear()
        self.heartbeat_due.set()

    def cancel(self, claims: Iterable[tuple[int, int]]) -> None:
        """Sets `Context.cancelled` for these claims."""
        for claim in claims:
            for stream in self.streams:
                if held := stream.held.get(claim):
                    held.attempt.context.cancelled.set()

    def lost(self, stream: Stream) -> None:
        """The server declared this worker dead: its handlers see `Context.cancelled`, and their results will be lost."""
        log.warning(
            "worker %d was declared dead while it was running: other workers get its jobs", stream.worker_id
        )
        stream.is_dead = True
        self.forget(stream)
        self.waiting = deque(held for held in self.waiting if held.stream is not stream)
        for held in stream.held.values():
            held.attempt.context.cancelled.set()
        if stream.is_open:
            stream.call.cancel()

    async def finish(self, grace_passes: Limit) -> None:
        """Waits until no job is running. When `grace_passes` returns, stops the running jobs and releases them.

        Call it after all streams have ended: then no job waits for a slot.
        """
        await self._wait_until_idle(grace_passes)
        if not self.running:
            return
        log.warning("releasing %d jobs that did not finish within the grace time", len(self.running))
        for held in self.running:
            held.attempt.release()
        await self._wait_until_idle(partial(asyncio.sleep, CLEANUP_SECONDS_MAX))
        for held in self.running:
            self._finish(held, released())

    async def _wait_until_idle(self, limit: Limit) -> None:
        if not self.running:
            return
        waits: list[asyncio.Task[None]] = [
            asyncio.create_task(_all_finished(list(self.running.values()))),
            asyncio.create_task(limit()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _all_finished(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
