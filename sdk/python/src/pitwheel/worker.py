"""The worker: receives jobs from a server, runs their handlers, and reports the results."""

import asyncio
import inspect
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import grpc
import grpc.aio

from ._proto import pitwheel_pb2 as pb
from ._proto.pitwheel_pb2_grpc import WorkerServiceStub
from .attempt import Handler
from .backoff import Backoff
from .channel import Metadata, Tls, open_channel, status_text, token_metadata
from .context import Context
from .heartbeat import Heartbeats
from .lease import Lease, now
from .runner import Runner
from .signals import on_signals
from .span import Span, from_duration, to_seconds
from .stream import Stream

log = logging.getLogger("pitwheel")

# The server refuses more.
SLOTS_MAX = 10_000
# After a stream that lasted this long, the backoff starts again from its shortest delay.
STABLE_STREAM_SECONDS = 5.0
# How long a shutdown waits for the last reports, then for the last heartbeat. Jobs whose reports do not arrive are given to
# other workers when the lease expires.
LAST_REPORTS_SECONDS_MAX = 10.0
LAST_HEARTBEAT_SECONDS_MAX = 5.0
# If the first stream fails with one of these, retrying does not help: `run` raises.
PERMANENT_ERRORS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)

# All streams of the process have this name: a job that was running at two crashes runs alone in the process.
_PROCESS = uuid.uuid4().hex

#: Why a job was not claimed by its id.
ClaimRefusal = Literal["taken", "finished", "out_of_attempts", "lane_busy", "paused", "no_handler"]

HandlerFunction = TypeVar("HandlerFunction", bound=Callable[[Any, Context], Awaitable[Any]])


class Worker:
    """Runs jobs in this process, at most `slots` at a time.

    ```python
    worker = Worker("127.0.0.1:7475", queues=["default"], slots=20)

    @worker.handler("greet")
    async def greet(payload: dict, context: Context) -> dict:
        return {"greeted": payload["name"]}

    asyncio.run(worker.run())
    ```
    """

    def __init__(
        self,
        address: str,
        *,
        queues: Sequence[str] = ("default",),
        slots: int = 20,
        grace: Span = 30.0,
        name: str | None = None,
        token: str | None = None,
        tls: Tls = False,
    ) -> None:
        """`address`: host and port of the server.

        `slots`: how many jobs run at a time. `grace`: how long running jobs may take to finish during a shutdown, before
        they are stopped and released. `name`: a label shown to operators; host and process id by default. `tls`: `True`,
        or the path of a file with root certificates.
        """
        if isinstance(queues, str) or not queues:
            raise ValueError(f"queues is `{queues!r}`: give a list with at least one name")
        if not 1 <= slots <= SLOTS_MAX:
            raise ValueError(f"slots is `{slots}`: give 1 to {SLOTS_MAX}")
        self._address = address
        self._queues = list(queues)
        self._slots = slots
        self._grace = to_seconds(grace)
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._token = token
        self._tls = tls
        self._handlers: dict[str, Handler] = {}
        self._run: _Run | None = None

    def handler(
        self, kind: str, *, history: Literal["all", "failures_only"] = "all"
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Registers the decorated `async def handler(payload, context)` for jobs of this kind.

        The returned value is stored as the job's result; `None` means no result. To enqueue followers with the completion,
        call `context.then`, or return `Complete`. An exception fails the attempt. Jobs of kinds without a handler stay in
        the queue. With `history="failures_only"`, a completed job without a result leaves no history.
        """

        def add(function: HandlerFunction) -> HandlerFunction:
            is_async = inspect.iscoroutinefunction(function)
            if not is_async:
                raise TypeError(
                    f"the handler of `{kind}` is not async: use `async def`, and `asyncio.to_thread` for blocking code"
                )
            if kind in self._handlers:
                raise ValueError(f"kind `{kind}` has two handlers: remove one of them")
            self._handlers[kind] = Handler(function, forget=history == "failures_only")
            return function

        return add

    async def run(self) -> None:
        """Runs jobs until SIGINT, SIGTERM or `stop`, then shuts down.

        A signal stops all workers of the process. A shutdown takes no more jobs, waits up to the grace time for the running
        ones, and releases the rest. A second signal ends the grace time. Cancelling this coroutine also shuts down, without
        the grace time; a second cancellation ends the shutdown. A worker that is asked to drain returns when its running
        jobs have finished, without a time limit until a signal or `stop`.

        Raises `grpc.aio.AioRpcError` if the server refuses the first stream, for example because of the token or the name
        of a queue.
        """
        await self._run_with(queues=self._queues, slots=self._slots)

    async def run_job(self, job_id: int) -> ClaimRefusal | None:
        """Claims this job, also before its time, runs it, and returns when it is reported. Of several callers one gets it.

        Returns `None` if this worker got the job; otherwise why not, and nothing was changed: another worker has it
        (`taken`), it is `finished`, it is `out_of_attempts`, another job of its lane comes first (`lane_busy`), its queue
        is `paused`, or this worker has no handler for its kind (`no_handler`). The queues of the worker do not matter. A
        shutdown works as in `run`.

        Raises `LookupError` if there is no such job, and otherwise what `run` raises.
        """
        try:
            return await self._run_with(job_id=job_id, slots=1)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise LookupError(error.details()) from error
            raise

    async def _run_with(self, **options: Any) -> ClaimRefusal | None:
        if not self._handlers:
            raise ValueError("the worker has no handlers: decorate a function with `@worker.handler(kind)`")
        if self._run is not None:
            raise RuntimeError("the worker is already running: create another `Worker`")
        # With the process id, because a fork copies the random name.
        process = f"{_PROCESS}-{os.getpid()}"
        request = pb.StreamJobsRequest(
            worker=self._name, kinds=sorted(self._handlers), process=process, **options
        )
        metadata = token_metadata(self._token)
        async with open_channel(self._address, self._tls) as channel:
            self._run = _Run(channel, metadata, request, self._handlers, self._grace)
            try:
                with on_signals(self.stop):
                    await self._run.run()
                return self._run.refusal
            finally:
                self._run = None

    def stop(self) -> None:
        """Starts the shutdown. The second call ends the grace time. Call it from the thread of the worker's event loop."""
        if self._run is not None:
            self._run.stop()


class _Run:
    """One call of `Worker.run` or `Worker.run_job`: the loops for streams, reports, progress and heartbeats."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: Metadata,
        request: pb.StreamJobsRequest,
        handlers: dict[str, Handler],
        grace: float,
    ) -> None:
        stub = WorkerServiceStub(channel)
        self._request = request
        self._open = partial(stub.StreamJobs, metadata=metadata)
        self._has_only_job = request.HasField("job_id")
        #: Why the only job was not claimed.
        self.refusal: ClaimRefusal | None = None
        self._refused = asyncio.Event()
        self._was_assigned = False
        self._grace = grace
        self._runner = Runner(handlers, request.slots, _unary(stub.ReportResult, metadata))
        self._reporter = self._runner.reporter
        self._heartbeats = Heartbeats(self._runner, _unary(stub.Heartbeat, metadata), self.drain)
        self._was_welcomed = False
        self._backoff = Backoff()
        self._drain = asyncio.Event()
        self._stop = asyncio.Event()
        self._skip_grace = asyncio.Event()

    def stop(self) -> None:
        if self._stop.is_set():
            self._skip_grace.set()
        self._stop.set()

    def drain(self) -> None:
        """Starts a shutdown without a time limit. A `stop` during it starts the grace time."""
        if not self._stop.is_set() and not self._drain.is_set():
            log.info("asked to drain: finishing the running jobs")
            self._drain.set()

    async def run(self) -> None:
        streams = asyncio.create_task(self._keep_slots_open())
        reporter = asyncio.create_task(self._reporter.run())
        progress = asyncio.create_task(self._reporter.run_progress())
        heartbeats = asyncio.create_task(self._heartbeats.run())
        loops: list[asyncio.Task[None]] = [streams, reporter, progress, heartbeats]
        ends = [self._stop, self._drain]
        if self._has_only_job:
            ends += [self._refused, self._runner.is_idle]
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(end.wait()) for end in ends]

        async def work() -> None:
            # The loops run until they are cancelled. If one ends earlier, it has failed: shut down and raise its error.
            await asyncio.wait([*waits, *loops], return_when=asyncio.FIRST_COMPLETED)
            await self._shut_down(streams, reporter, heartbeats)

        # A separate task: when this one is cancelled, also during the shutdown, the running jobs must still be released.
        working = asyncio.create_task(work())
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            self._stop.set()
            self._skip_grace.set()
            # A second cancellation ends the shutdown.
            await working
            raise
        finally:
            for task in [*waits, *loops]:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        for loop in loops:
            if not loop.cancelled() and (error := loop.exception()):
                raise error

    async def _shut_down(
        self, streams: asyncio.Task[None], reporter: asyncio.Task[None], heartbeats: asyncio.Task[None]
    ) -> None:
        self._runner.is_stopping = True
        streams.cancel()
        await asyncio.wait([streams])
        await self._runner.finish(self._grace_passes)
        self._reporter.close()
        await asyncio.wait([reporter], timeout=LAST_REPORTS_SECONDS_MAX)
        self._runner.abandon()
        self._heartbeats.close()
        await asyncio.wait([heartbeats], timeout=LAST_HEARTBEAT_SECONDS_MAX)

    async def _grace_passes(self) -> None:
        """Returns at the end of the grace time. That of a worker that drains begins with `stop`."""
        if self._drain.is_set():
            await self._stop.wait()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._skip_grace.wait(), self._grace)

    async def _keep_slots_open(self) -> None:
        """Keeps all slots in open streams: in one, or in several while and after jobs of a broken one have kept some."""
        streams: set[asyncio.Task[None]] = set()
        tasks: set[asyncio.Task[Any]] = set()
        delay = 0.0
        try:
            while True:
                slots = asyncio.create_task(self._slots_for_next_stream(delay))
                tasks = {slots, *streams}
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                # An ended stream comes first: the slots may be those that it had, and the delay must pass.
                if ended := {stream for stream in streams if stream.done()}:
                    slots.cancel()
                    streams -= ended
                    for stream in ended:
                        stream.result()
                    delay = self._backoff.next()
                else:
                    self._runner.slots.opened(slots.result())
                    streams.add(asyncio.create_task(self._stream(slots.result())))
                    delay = 0.0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _slots_for_next_stream(self, delay: float) -> int:
        if self.refusal or (self._has_only_job and self._was_assigned):
            # The only job is reported without a stream.
            await asyncio.Event().wait()
        await asyncio.sleep(delay)
        return await self._runner.slots.for_next_stream()

    async def _stream(self, slots: int) -> None:
        """Receives jobs on one stream until it ends. Raises if opening another one does not help."""
        clock = asyncio.get_running_loop().time
        opened_at = clock()
        try:
            await self._read_stream(slots)
            log.info("the stream ended, will open another")
        except grpc.aio.AioRpcError as error:
            is_missing = self._has_only_job and error.code() is grpc.StatusCode.NOT_FOUND
            if is_missing or (error.code() in PERMANENT_ERRORS and not self._was_welcomed):
                raise
            log.warning("the stream broke, will open another: %s", status_text(error))
        if clock() - opened_at >= STABLE_STREAM_SECONDS:
            self._backoff.reset()

    async def _read_stream(self, slots: int) -> None:
        """Opens a stream, and starts the jobs that arrive on it until it ends."""
        # A copy, because gRPC serializes the request later, in a task.
        request = pb.StreamJobsRequest()
        request.CopyFrom(self._request)
        request.slots = slots
        asked_at = now()
        call = self._open(request)
        stream: Stream | None = None
        try:
            async for response in call:
                if response.HasField("welcome"):
                    lease = Lease(from_duration(response.welcome.lease), asked_at)
                    stream = self._welcome(response.welcome, call, lease)
                elif response.HasField("claim_refused"):
                    self.refusal = _refusal(response.claim_refused.reason)
                    self._refused.set()
                    return
                elif response.HasField("cancels"):
                    self._runner.cancel((claim.job_id, claim.fence) for claim in response.cancels.claims)
                # Anything else is an event of a later version.
                elif stream is not None and response.HasField("assignments"):
                    self._was_assigned = True
                    self._runner.assigned(stream, response.assignments.jobs)
        except asyncio.CancelledError:
            # `Runner.lost` cancels the call of a dead stream. gRPC reports that like the cancellation of this task.
            if stream is None or not stream.is_dead or self._runner.is_stopping:
                raise
        finally:
            call.cancel()
            kept = 0 if stream is None else self._runner.ended(stream)
            self._runner.slots.ended(slots, kept)

    def _welcome(self, welcome: pb.Welcome, call: Any, lease: Lease) -> Stream:
        log.info("receiving jobs as worker %d", welcome.worker_id)
        self._was_welcomed = True
        self._heartbeats.set_interval(from_duration(welcome.heartbeat_every))
        stream = Stream(welcome.worker_id, call, lease)
        self._runner.opened(stream)
        return stream


def _refusal(reason: int) -> ClaimRefusal:
    """The name of the reason. One of a later version means that another worker may have the job."""
    name = pb.ClaimRefusal.Name(reason) if reason in pb.ClaimRefusal.values() else ""
    name = name.removeprefix("CLAIM_REFUSAL_").lower()
    return name if name in get_args(ClaimRefusal) else "taken"  # type: ignore[return-value]


def _unary(method: Any, metadata: Metadata) -> Callable[[Any, float], Awaitable[Any]]:
    def send(request: Any, timeout: float) -> Awaitable[Any]:
        call: Awaitable[Any] = method(request, timeout=timeout, metadata=metadata)
        return call

    return send
