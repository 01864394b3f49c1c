"""Each way a handler can end is reported as its own outcome."""

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import RunWorker
from fake_server import FakeServer, assignment
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pitwheel import Bury, Complete, Context, NewJob, Retry, Snooze
from pitwheel._proto import pitwheel_pb2 as pb


async def a_returned_value_is_the_result(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> Any:
        return {"greeted": payload["name"]}

    await work(greet)
    (await server.stream()).assign(assignment(7, '{"name":"Ada"}'))

    result = await server.result(7)
    assert result.complete.result == '{"greeted":"Ada"}'
    assert result.claim == pb.Claim(job_id=7, fence=70, worker_id=1)
    assert not result.complete.forget


async def none_is_no_result_and_failures_only_sets_forget(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        pass

    await work(greet, history="failures_only")
    (await server.stream()).assign(assignment())

    complete = (await server.result(1)).complete
    assert not complete.HasField("result")
    assert complete.forget


async def the_context_describes_the_job(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> Any:
        fields = ("id", "fence", "kind", "queue", "attempt", "max_attempts", "key", "metadata")
        return [getattr(context, field) for field in fields]

    await work(greet)
    stream = await server.stream()
    stream.assign(assignment(1), assignment(2, attempt=3, key="ada", metadata='{"traceparent":"00-1"}'))

    plain = (await server.result(1)).complete.result
    assert plain == '[1,10,"greet","default",1,20,null,null]'
    rich = (await server.result(2)).complete.result
    assert rich == '[2,20,"greet","default",3,20,"ada",{"traceparent":"00-1"}]'


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError("no such name"), "ValueError: no such name"),
        (KeyError(), "KeyError"),
        (SystemExit(1), "SystemExit: 1"),
        (asyncio.TimeoutError("of its own"), "TimeoutError: of its own"),
        (asyncio.CancelledError(), "CancelledError"),
        (ValueError("a NUL \0 and a lone \ud800"), "ValueError: a NUL  and a lone ?"),
    ],
)
async def an_exception_fails_the_attempt(
    server: FakeServer, work: RunWorker, raised: BaseException, error: str
) -> None:
    async def greet(payload: Any, context: Context) -> None:
        raise raised

    await work(greet)
    (await server.stream()).assign(assignment())

    assert (await server.result(1)).fail == pb.Fail(error=error, cause=pb.FAILURE_CAUSE_ERROR)


async def a_verdict_is_reported_as_it_was_raised(server: FakeServer, work: RunWorker) -> None:
    verdicts = [
        Snooze(90.5),
        Snooze(timedelta(minutes=2)),
        Bury("no such account"),
        Retry(3, "not yet there"),
    ]

    async def greet(payload: Any, context: Context) -> None:
        raise verdicts[payload]

    await work(greet)
    (await server.stream()).assign(*(assignment(n + 1, str(n)) for n in range(4)))

    assert (await server.result(1)).snooze.delay == Duration(seconds=90, nanos=500_000_000)
    assert (await server.result(2)).snooze.delay == Duration(seconds=120)
    assert (await server.result(3)).bury.reason == "no such account"
    assert (await server.result(4)).fail == pb.Fail(
        error="not yet there", retry_after=Duration(seconds=3), cause=pb.FAILURE_CAUSE_ERROR
    )


@pytest.mark.parametrize("delay", [-1, 1e12, float("nan"), timedelta(days=40_000)])
async def an_invalid_delay_fails_the_attempt(
    server: FakeServer, work: RunWorker, delay: float | timedelta
) -> None:
    async def greet(payload: Any, context: Context) -> None:
        raise Snooze(delay)

    await work(greet)
    (await server.stream()).assign(assignment())

    assert (await server.result(1)).HasField("fail")


async def an_attempt_that_exceeds_its_timeout_fails(server: FakeServer, work: RunWorker) -> None:
    stopped = []

    async def greet(payload: Any, context: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(context.id)

    await work(greet)
    (await server.stream()).assign(assignment(timeout=Duration(nanos=20_000_000)))

    fail = (await server.result(1)).fail
    assert fail == pb.Fail(error="the attempt did not finish within 0.02 s", cause=pb.FAILURE_CAUSE_TIMEOUT)
    assert stopped == [1]


@pytest.mark.parametrize("ends_by", ["return", "retry", "error"])
async def a_handler_that_catches_its_timeout_and_ends_has_failed(
    server: FakeServer, work: RunWorker, ends_by: str
) -> None:
    async def greet(payload: Any, context: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends_by == "retry":
                raise Retry(3, "not yet there") from None
            if ends_by == "error":
                raise ValueError("no") from None
        return "too late"

    await work(greet)
    (await server.stream()).assign(assignment(timeout=Duration(nanos=20_000_000)))

    fail = (await server.result(1)).fail
    assert fail == pb.Fail(error="the attempt did not finish within 0.02 s", cause=pb.FAILURE_CAUSE_TIMEOUT)


async def a_handler_that_goes_on_after_its_timeout_has_failed_and_keeps_its_slot(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pitwheel.attempt.CLEANUP_SECONDS_MAX", 0.02)
    monkeypatch.setattr("pitwheel.runner.WAITING_SECONDS_MAX", 3600)
    goes_on = asyncio.Event()
    late: list[Exception] = []

    async def greet(payload: Any, context: Context) -> str:
        if context.id != 1:
            return "second"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await goes_on.wait()
        try:
            context.then(NewJob(kind="greet"))
        except RuntimeError as error:
            late.append(error)
        return "too late"

    await work(greet, slots=1)
    stream = await server.stream()
    stream.assign(assignment(timeout=Duration(nanos=20_000_000)))

    fail = (await server.result(1)).fail
    assert fail == pb.Fail(error="the attempt did not finish within 0.02 s", cause=pb.FAILURE_CAUSE_TIMEOUT)
    assert "job 1 of kind `greet` has failed by its timeout, but its handler still runs" in caplog.text
    # The server has a free slot now, and the handler has not.
    stream.assign(assignment(2))
    heartbeats = len(server.heartbeats)
    await server.until(lambda: len(server.heartbeats) > heartbeats + 1)
    assert len(server.results) == 1
    goes_on.set()
    assert (await server.result(2)).complete.result == '"second"'
    assert len(server.results) == 2, "the end of the first handler is not reported again"
    assert len(late) == 1


async def a_job_behind_a_handler_that_keeps_its_slot_is_released(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.attempt.CLEANUP_SECONDS_MAX", 0.02)
    monkeypatch.setattr("pitwheel.runner.WAITING_SECONDS_MAX", 0.02)
    goes_on = asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await goes_on.wait()

    await work(greet, slots=1)
    stream = await server.stream()
    stream.assign(assignment(timeout=Duration(nanos=20_000_000)))
    assert (await server.result(1)).HasField("fail")
    stream.assign(assignment(2))

    assert (await server.result(2)).HasField("release")
    goes_on.set()


async def an_attempt_within_its_timeout_completes(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> str:
        return "in time"

    await work(greet)
    (await server.stream()).assign(assignment(timeout=Duration(seconds=60)))

    assert (await server.result(1)).complete.result == '"in time"'


async def a_payload_that_is_not_json_fails_without_calling_the_handler(
    server: FakeServer, work: RunWorker
) -> None:
    calls = []

    async def greet(payload: Any, context: Context) -> None:
        calls.append(payload)

    await work(greet)
    (await server.stream()).assign(assignment(payload="{"))

    fail = (await server.result(1)).fail
    assert fail.cause == pb.FAILURE_CAUSE_PAYLOAD
    assert fail.error.startswith("the payload is not JSON: ")
    assert calls == []


# Python refuses to read integers of more than 4300 digits.
_DIGITS = "1" * 5000
_UNREADABLE: dict[str, Any] = {
    "lane": f"[{_DIGITS}]",
    "metadata": "[" * 100_000,
    "recurrence": pb.Recurrence(planned_at=Timestamp(seconds=-(10**12))),
    "step": pb.CurrentStep(name="add", parents=[pb.ParentStep(name="load", state="done", result=_DIGITS)]),
}


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("lane", "ValueError: the lane cannot be read: ValueError: "),
        ("metadata", "ValueError: the metadata cannot be read: RecursionError: "),
        ("recurrence", "OverflowError: "),
        ("step", "ValueError: the result of step `load` cannot be read: ValueError: "),
    ],
)
async def a_field_that_cannot_be_read_fails_only_the_job_that_reads_it(
    server: FakeServer, work: RunWorker, field: str, error: str
) -> None:
    async def greet(payload: Any, context: Context) -> str:
        if payload == "read":
            getattr(context, field)
        return "not read"

    await work(greet)
    fields = {field: _UNREADABLE[field]}
    (await server.stream()).assign(assignment(1, '"read"', **fields), assignment(2, **fields), assignment(3))

    assert (await server.result(1)).fail.error.startswith(error)
    assert (await server.result(2)).complete.result == '"not read"'
    assert (await server.result(3)).HasField("complete")
    assert len(server.streams) == 1


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({1, 2}, "the result is not JSON: TypeError: "),
        (float("nan"), "the result is not JSON: ValueError: "),
        ("\ud800", "the result is not JSON: UnicodeEncodeError: "),
        ("é" * 140_000, "the result has 280002 bytes, the limit is 262144: "),
    ],
)
async def a_result_that_cannot_be_stored_fails_the_attempt(
    server: FakeServer, work: RunWorker, value: Any, error: str
) -> None:
    async def greet(payload: Any, context: Context) -> Any:
        return value

    await work(greet)
    (await server.stream()).assign(assignment())

    assert (await server.result(1)).fail.error.startswith(error)


_AFTER_THE_LAST_TIME = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("found", 3.0, "found `3.0` is not an integer"),
        ("found", "3", "found `'3'` is not an integer"),
        ("found", -1, "found is negative, or has more than 64 bits"),
        ("found", 2**70, "found is negative, or has more than 64 bits"),
        # With an id, because an integer of more than 4300 digits has no text.
        pytest.param("found", 10**5000, "found is negative, or has more than 64 bits", id="5001 digits"),
        ("next_at", _AFTER_THE_LAST_TIME, "next_at `9999-12-31 23:59:59.999999-05:00` is out of range"),
        ("next_at", datetime(2030, 1, 1), "next_at `2030-01-01 00:00:00` has no time zone: "),
        ("next_at", "2030-01-01", "next_at `'2030-01-01'` is not a datetime"),
    ],
)
async def an_invalid_field_of_a_completion_fails_the_attempt(
    server: FakeServer, work: RunWorker, field: str, value: Any, error: str
) -> None:
    async def greet(how: str, context: Context) -> Complete:
        if how == "given":
            return Complete("greeted", **{field: value})
        complete = Complete("greeted")
        setattr(complete, field, value)
        return complete

    await work(greet)
    (await server.stream()).assign(assignment(1, '"given"'), assignment(2, '"set"'))

    given, later = (await server.result(1)).fail.error, (await server.result(2)).fail.error
    assert given.removeprefix("TypeError: ").removeprefix("ValueError: ").startswith(error)
    assert later.startswith(error)


async def a_verdict_that_lacks_its_fields_fails_the_attempt(
    server: FakeServer, work: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    class Busy(Retry):
        def __init__(self) -> None:
            pass

    async def greet(payload: Any, context: Context) -> None:
        raise Busy

    await work(greet, slots=1)
    stream = await server.stream()
    stream.assign(assignment(1), assignment(2))

    error = "the attempt ended without a result: AttributeError: "
    assert (await server.result(1)).fail.error.startswith(error)
    assert (await server.result(2)).fail.error.startswith(error)
    assert "job 1 of kind `greet` ended without a result" in caplog.text
    stream.end()
    await server.ended(stream.worker_id, [])


async def a_job_without_a_handler_is_released(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        pass

    await work(greet)
    (await server.stream()).assign(assignment(kind="unknown"))

    assert (await server.result(1)).HasField("release")
