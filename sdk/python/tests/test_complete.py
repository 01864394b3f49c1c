"""A handler that completes its job in its own transaction: what is sent to the database, and what is reported.

If the transaction was committed, the server answers the report as already settled, or as lost.
"""

import asyncio
import json
from collections.abc import Generator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, assignment
from google.protobuf.duration_pb2 import Duration

import pitwheel
from pitwheel import Bury, Complete, Context, NewJob, Retry, Snooze
from pitwheel._proto import pitwheel_pb2 as pb

NOT_COMMITTED = "the transaction in which the handler completed the job was not committed"
NEXT = NewJob(kind="next")


class FakeAnswer:
    """The answer of a database. It can be awaited, because an async connection returns it from a coroutine."""

    def __init__(self, written: bool) -> None:
        self.written = written

    def __await__(self) -> Generator[Any, None, "FakeAnswer"]:
        yield from asyncio.sleep(0).__await__()
        return self

    def scalar_one(self) -> bool:
        return self.written


class FakeConnection:
    """A connection of SQLAlchemy, as the package sees it. Records the values that are sent."""

    __module__ = "sqlalchemy.fake"

    def __init__(self, written: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.written = written

    def execute(self, statement: object, values: dict[str, Any]) -> FakeAnswer:
        assert "pitwheel.complete(" in str(statement)
        self.sent.append(values)
        return FakeAnswer(self.written)


class AsyncFakeConnection(FakeConnection):
    """Its name starts with `Async`, like those of the async connections of both libraries."""

    __module__ = "sqlalchemy.fake"


async def the_claim_the_result_and_the_followers_are_sent(server: FakeServer, work: RunWorker) -> None:
    connection = FakeConnection()

    async def greet(payload: Any, context: Context) -> None:
        context.then(
            NewJob(
                kind="mail",
                payload={"to": "Ada"},
                queue="mail",
                run_at=datetime(2100, 1, 2, 12, 0, tzinfo=timezone.utc),
                priority=-3,
                max_attempts=5,
                timeout=timedelta(milliseconds=1500),
                key='"ada"',
                metadata={"tenant": 7},
            ),
            NewJob(kind="next", delay=60),
        )
        assert pitwheel.complete(connection, context, {"greeted": "Ada"}) is True

    await work(greet)
    (await server.stream()).assign(assignment(7, worker_id=3))
    await server.result(7)

    (sent,) = connection.sent
    followers = json.loads(sent.pop("followers"))
    assert sent == {
        "job_id": 7,
        "fence": 70,
        "result": '{"greeted":"Ada"}',
        "keep_history": True,
        "holder": 3,
    }
    assert followers == [
        {
            "kind": "mail",
            "payload": {"to": "Ada"},
            "queue": "mail",
            "run_at": "2100-01-02T12:00:00Z",
            "priority": -3,
            "max_attempts": 5,
            "timeout": "1.500s",
            "key": '"ada"',
            "metadata": {"tenant": 7},
        },
        {
            "kind": "next",
            "payload": {},
            "queue": "default",
            "delay": "60s",
            "priority": 0,
            "max_attempts": 20,
        },
    ]


async def failures_only_keeps_no_history_and_none_is_no_result(server: FakeServer, work: RunWorker) -> None:
    connection = AsyncFakeConnection()

    async def greet(payload: Any, context: Context) -> None:
        assert await pitwheel.complete_async(connection, context) is True

    await work(greet, history="failures_only")
    (await server.stream()).assign(assignment())
    await server.result(1)

    assert connection.sent == [
        {"job_id": 1, "fence": 10, "result": None, "followers": "[]", "keep_history": False, "holder": None}
    ]


async def a_committed_job_is_settled_without_a_warning(
    server: FakeServer, work: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.lost = {1}

    async def greet(payload: Any, context: Context) -> str:
        context.then(NEXT)
        pitwheel.complete(FakeConnection(), context)
        return "ignored"

    await work(greet, slots=1)
    stream = await server.stream()
    stream.assign(assignment(1))

    result = await server.result(1)
    assert result.fail == pb.Fail(error=NOT_COMMITTED, cause=pb.FAILURE_CAUSE_ERROR)
    assert result.completed_by_handler
    stream.end()
    await server.ended(stream.worker_id, [])
    assert "lost" not in caplog.text
    assert len(server.results) == 1


@pytest.mark.parametrize(
    "raised", [None, Snooze(60), Retry(5, "rate limited"), Bury("no such account"), asyncio.CancelledError()]
)
async def a_handler_that_did_not_commit_has_failed(
    server: FakeServer, work: RunWorker, raised: BaseException | None
) -> None:
    async def greet(payload: Any, context: Context) -> Complete:
        context.then(NEXT)
        await pitwheel.complete_async(AsyncFakeConnection(), context)
        if raised is not None:
            raise raised
        return Complete({1, 2}).then(NEXT)

    await work(greet)
    (await server.stream()).assign(assignment())

    error = "CancelledError" if isinstance(raised, asyncio.CancelledError) else NOT_COMMITTED
    assert (await server.result(1)).fail == pb.Fail(error=error, cause=pb.FAILURE_CAUSE_ERROR)


async def an_error_after_the_completion_stays_the_error_of_the_attempt(
    server: FakeServer, work: RunWorker
) -> None:
    async def greet(payload: Any, context: Context) -> None:
        pitwheel.complete(FakeConnection(), context)
        if context.id == 2:
            await asyncio.Event().wait()
        raise ValueError("the commit failed")

    await work(greet)
    (await server.stream()).assign(assignment(1), assignment(2, timeout=Duration(nanos=20_000_000)))

    assert (await server.result(1)).fail.error == "ValueError: the commit failed"
    assert (await server.result(2)).fail.cause == pb.FAILURE_CAUSE_TIMEOUT


async def a_lost_claim_is_false(server: FakeServer, work: RunWorker) -> None:
    written: list[bool] = []

    async def greet(payload: Any, context: Context) -> None:
        written.append(pitwheel.complete(FakeConnection(written=False), context))
        written.append(await pitwheel.complete_async(AsyncFakeConnection(written=False), context))

    await work(greet)
    (await server.stream()).assign(assignment())

    assert (await server.result(1)).fail.error == NOT_COMMITTED
    assert written == [False, False]


async def an_invalid_call_sends_nothing_and_the_job_can_still_be_completed(
    server: FakeServer, work: RunWorker
) -> None:
    connection = FakeConnection()
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (connection, {1, 2}, ValueError, "the result is not JSON: TypeError: Object of type set"),
        (connection, float("nan"), ValueError, "the result is not JSON: ValueError"),
        (connection, "ä" * 200_000, ValueError, "the result has 400002 bytes, the limit is 262144"),
        (object(), None, TypeError, "`object` is not a supported connection"),
        (AsyncFakeConnection(), None, TypeError, r"`AsyncFakeConnection` needs `pitwheel\.complete_async`"),
    ]

    async def greet(payload: Any, context: Context) -> str:
        for database, result, error, message in wrong:
            with pytest.raises(error, match=message):
                pitwheel.complete(database, context, result)
        with pytest.raises(TypeError, match=r"`FakeConnection` needs `pitwheel\.complete`"):
            await pitwheel.complete_async(connection, context)
        context.then(NEXT)
        return "greeted"

    await work(greet)
    (await server.stream()).assign(assignment())

    complete = (await server.result(1)).complete
    assert (complete.result, [job.kind for job in complete.then]) == ('"greeted"', ["next"])
    assert connection.sent == []


@pytest.mark.parametrize("delay", [-1, timedelta(days=101 * 365)])
async def a_follower_with_an_invalid_delay_is_refused(
    server: FakeServer, work: RunWorker, delay: float | timedelta
) -> None:
    connection = FakeConnection()

    async def greet(payload: Any, context: Context) -> None:
        context.then(NewJob(kind="next", delay=delay))
        pitwheel.complete(connection, context)

    await work(greet)
    (await server.stream()).assign(assignment())

    assert "is not a time span from 0 to 100 years" in (await server.result(1)).fail.error
    assert connection.sent == []


async def a_follower_cannot_be_added_after_the_completion(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        pitwheel.complete(FakeConnection(), context)
        context.then(NEXT)

    await work(greet)
    (await server.stream()).assign(assignment())

    error = (await server.result(1)).fail.error
    assert error == "RuntimeError: `pitwheel.complete` was called for job `1`: call `then` before it"


async def a_repeated_transaction_sends_the_same_followers(server: FakeServer, work: RunWorker) -> None:
    connection = FakeConnection()

    async def greet(payload: Any, context: Context) -> None:
        context.then(NEXT)
        for _ in range(2):
            pitwheel.complete(connection, context)

    await work(greet)
    (await server.stream()).assign(assignment())
    await server.result(1)

    first, second = connection.sent
    assert first == second
    assert [job["kind"] for job in json.loads(second["followers"])] == ["next"]


async def a_job_cannot_be_completed_after_the_attempt(server: FakeServer, work: RunWorker) -> None:
    contexts: list[Context] = []
    connection = FakeConnection()

    async def greet(payload: Any, context: Context) -> None:
        contexts.append(context)

    await work(greet)
    (await server.stream()).assign(assignment())
    await server.result(1)

    with pytest.raises(RuntimeError, match="the attempt of job `1` has ended: call `complete` before"):
        pitwheel.complete(connection, contexts[0])
    assert connection.sent == []


async def no_progress_is_sent_after_the_completion(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.reporter.PROGRESS_INTERVAL_SECONDS", 0.01)
    completed, done = asyncio.Event(), asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        if context.id == 1:
            context.progress(0.5)
            pitwheel.complete(FakeConnection(), context)
            context.progress(0.9)
            completed.set()
        await done.wait()

    await work(greet)
    stream = await server.stream()
    stream.assign(assignment(1))
    await asyncio.wait_for(completed.wait(), TIMEOUT)
    beats = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > beats + 3)
    done.set()

    await server.result(1)
    assert [result.WhichOneof("outcome") for result in server.results] == ["fail"]


async def progress_that_waits_to_be_sent_is_dropped_by_the_completion(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.reporter.PROGRESS_INTERVAL_SECONDS", 0.01)
    said, complete, completed, done = (asyncio.Event() for _ in range(4))

    async def greet(payload: Any, context: Context) -> None:
        if context.id == 2:
            context.progress(0.5)
            said.set()
            await complete.wait()
            pitwheel.complete(FakeConnection(), context)
            completed.set()
            await done.wait()

    await work(greet)
    stream = await server.stream()
    server.answers.clear()
    stream.assign(assignment(1))
    await server.result(1)
    stream.assign(assignment(2))
    await asyncio.wait_for(said.wait(), TIMEOUT)
    await server.until(lambda: len(server.heartbeats) > 3)
    complete.set()
    await asyncio.wait_for(completed.wait(), TIMEOUT)
    server.answers.set()
    beats = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > beats + 3)
    done.set()

    await server.result(2)
    assert [result.WhichOneof("outcome") for result in server.results] == ["complete", "fail"]


async def progress_that_is_lost_to_the_completion_does_not_set_cancelled(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.reporter.PROGRESS_INTERVAL_SECONDS", 0.01)
    complete, completed, done = (asyncio.Event() for _ in range(3))
    contexts: list[Context] = []

    async def greet(payload: Any, context: Context) -> None:
        if context.id == 1:
            contexts.append(context)
            context.progress(0.5)
            await complete.wait()
            pitwheel.complete(FakeConnection(), context)
            completed.set()
            await done.wait()

    await work(greet)
    stream = await server.stream()
    server.lost = {1}
    server.answers.clear()
    stream.assign(assignment(1))
    await server.result(1, "progress")
    complete.set()
    await asyncio.wait_for(completed.wait(), TIMEOUT)
    server.answers.set()
    # The reporter sends one request at a time: this result is sent after the answer to the progress was read.
    stream.assign(assignment(2))
    await server.result(2)

    assert not contexts[0].cancelled.is_set()
    done.set()
    assert (await server.result(1, "fail")).fail.error == NOT_COMMITTED


async def followers_that_are_too_large_are_refused_before_anything_is_sent(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.followers.FOLLOWERS_BYTES_MAX", 1000)
    connection = FakeConnection()

    async def greet(payload: Any, context: Context) -> None:
        context.then(NewJob(kind="next", payload="x" * 1000))
        with pytest.raises(ValueError, match="the limit is 1000: store large payloads"):
            pitwheel.complete(connection, context)

    await work(greet)
    (await server.stream()).assign(assignment())
    await server.result(1)
    assert connection.sent == []
