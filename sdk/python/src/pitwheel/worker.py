"""The worker: takes jobs from a server, runs their handlers, reports how they ended."""

import asyncio
import inspect
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, TypeVar

import grpc
import grpc.aio

from ._proto import pitwheel_pb2 as pb
from ._proto.pitwheel_pb2_grpc import WorkerServiceStub
from .attempt import Handler
from .backoff import Backoff
from .channel import Metadata, Tls, open_channel, status_text, token_metadata
from .context import Context
from .heartbeat import Heartbeats
from .runner import Runner
from .span import Span, from_duration, to_seconds
from .stream import Stream

log = logging.getLogger("pitwheel")

# What the server takes.
SLOTS_MAX = 10_000
# A stream that lasted this long was a good one: the next is opened without delay.
STABLE_STREAM_SECONDS = 5.0
# How long the last reports may take, then the last heartbeat. What the server does not hear of, the lease gives back.
LAST_REPORTS_SECONDS_MAX = 10.0
LAST_HEARTBEAT_SECONDS_MAX = 5.0
# A first stream that ends like this will end like this every time: it is told to whoever started the worker.
PERMANENT_ERRORS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)

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
        """`grace`: how long running jobs may take to finish after the shutdown began, before they are released.

        `name`: for people; host and process id by default. `tls`: `True`, or the path of root certificates.
        """
        if isinstance(queues, str) or not queues:
            raise ValueError(f"queues is `{queues!r}`: give a list of at least one name")
        if not 1 <= slots <= SLOTS_MAX:
            raise ValueError(f"slots is {slots}: give 1 to {SLOTS_MAX}")
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
        """Runs jobs of this kind with the decorated `async def handler(payload, context)`.

        What it returns is kept as the job's result, unless it is `None`; what it raises fails the attempt. Jobs of kinds
        that no handler here knows stay in the queue. `history="failures_only"`: a success without a result is forgotten.
        """

        def add(function: HandlerFunction) -> HandlerFunction:
            is_async = inspect.iscoroutinefunction(function)
            if not is_async:
                raise TypeError(
                    f"the handler of `{kind}` is not async: write `async def`, blocking code in asyncio.to_thread"
                )
            if kind in self._handlers:
                raise ValueError(f"kind `{kind}` has two handlers")
            self._handlers[kind] = Handler(function, forget=history == "failures_only")
            return function

        return add

    async def run(self) -> None:
        """Works until SIGINT, SIGTERM or `stop`: then takes no more, finishes within the grace time, releases the rest.

        A worker that the server tells to drain ends when its running jobs have.

        A second signal ends the grace time. To cancel this ends it too: what runs is stopped and released first. Raises
        what the server says when it refuses the first stream, for its token or the name of a queue.
        """
        if not self._handlers:
            raise ValueError("the worker has no handlers: decorate a function with @worker.handler(kind)")
        if self._run is not None:
            raise RuntimeError("the worker runs already")
        request = pb.StreamJobsRequest(
            worker=self._name, queues=self._queues, kinds=sorted(self._handlers), slots=self._slots
        )
        metadata = token_metadata(self._token)
        async with open_channel(self._address, self._tls) as channel:
            self._run = _Run(channel, metadata, request, self._handlers, self._grace)
            try:
                with _on_signals(self.stop):
                    await self._run.run()
            finally:
                self._run = None

    def stop(self) -> None:
        """Begins the shutdown; the second time, ends the grace time. To be called in the worker's own thread."""
        if self._run is not None:
            self._run.stop()


class _Run:
    """One run of a worker: four loops around a core."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: Metadata,
        request: pb.StreamJobsRequest,
        handlers: dict[str, Handler],
        grace: float,
    ) -> None:
        stub = WorkerServiceStub(channel)
        self._open = partial(stub.StreamJobs, request, metadata=metadata)
        self._grace: float | None = grace
        self._runner = Runner(handlers, request.slots, _unary(stub.ReportResult, metadata))
        self._reporter = self._runner.reporter
        self._heartbeats = Heartbeats(self._runner, _unary(stub.Heartbeat, metadata), self.drain)
        self._was_welcomed = False
        self._stop = asyncio.Event()
        self._skip_grace = asyncio.Event()

    def stop(self) -> None:
        if self._stop.is_set():
            self._skip_grace.set()
        self._stop.set()

    def drain(self) -> None:
        """Ends when what runs has ended, however long that takes."""
        if not self._stop.is_set():
            log.info("told to drain: finishing what runs")
            self._grace = None
            self._stop.set()

    async def run(self) -> None:
        streams = asyncio.create_task(self._keep_a_stream_open())
        reporter = asyncio.create_task(self._reporter.run())
        progress = asyncio.create_task(self._reporter.run_progress())
        heartbeats = asyncio.create_task(self._heartbeats.run())
        loops: list[asyncio.Task[None]] = [streams, reporter, progress, heartbeats]
        stop: asyncio.Task[Any] = asyncio.create_task(self._stop.wait())
        try:
            # The loops have no end of their own: one that ends has failed, and the worker with it.
            await asyncio.wait([stop, *loops], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._skip_grace.set()
            raise
        finally:
            try:
                await self._shut_down(streams, reporter, heartbeats)
            finally:
                for task in [stop, *loops]:
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
        await self._runner.finish(self._grace, self._skip_grace)
        self._reporter.close()
        await asyncio.wait([reporter], timeout=LAST_REPORTS_SECONDS_MAX)
        self._runner.abandon()
        self._heartbeats.close()
        await asyncio.wait([heartbeats], timeout=LAST_HEARTBEAT_SECONDS_MAX)

    async def _keep_a_stream_open(self) -> None:
        backoff = Backoff()
        clock = asyncio.get_running_loop().time
        while True:
            opened_at = clock()
            try:
                await self._read_stream()
                log.info("the stream ended, opening another")
            except grpc.aio.AioRpcError as error:
                if error.code() in PERMANENT_ERRORS and not self._was_welcomed:
                    raise
                log.warning("the stream broke, opening another: %s", status_text(error))
            if clock() - opened_at >= STABLE_STREAM_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _read_stream(self) -> None:
        """Opens a stream and starts what comes down, until it ends."""
        call = self._open()
        stream: Stream | None = None
        try:
            async for response in call:
                if response.HasField("welcome"):
                    stream = self._welcome(response.welcome, call)
                elif response.HasField("cancels"):
                    self._runner.cancel((claim.job_id, claim.fence) for claim in response.cancels.claims)
                elif stream is not None:
                    self._runner.assigned(stream, response.assignments.jobs)
        except asyncio.CancelledError:
            # A call that is cancelled here says so in the same way as a task that is.
            if stream is None or not stream.is_dead or self._runner.is_stopping:
                raise
        finally:
            call.cancel()
            if stream is not None:
                self._runner.ended(stream)

    def _welcome(self, welcome: pb.Welcome, call: Any) -> Stream:
        log.info("taking jobs as worker %d", welcome.worker_id)
        self._was_welcomed = True
        self._heartbeats.set_interval(from_duration(welcome.heartbeat_every))
        stream = Stream(welcome.worker_id, call)
        self._runner.opened(stream)
        return stream


def _unary(method: Any, metadata: Metadata) -> Callable[[Any, float], Awaitable[Any]]:
    def send(request: Any, timeout: float) -> Awaitable[Any]:
        call: Awaitable[Any] = method(request, timeout=timeout, metadata=metadata)
        return call

    return send


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at SIGINT and SIGTERM, where that can be: not in other threads, and not on Windows."""
    loop = asyncio.get_running_loop()
    taken = []
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
