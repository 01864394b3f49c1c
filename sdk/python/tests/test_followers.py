"""Followers are sent with the completion of their job, and with no other outcome."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from conftest import RunWorker
from fake_server import TIMEOUT, FakeServer, assignment
from google.protobuf.duration_pb2 import Duration

from pitwheel import Bury, Complete, Context, NewJob, Retry, Snooze
from pitwheel._proto import pitwheel_pb2 as pb

NEXT = NewJob(kind="next")


def _sent(kind: str, payload: str = "{}", **fields: Any) -> pb.NewJob:
    return pb.NewJob(kind=kind, payload=payload, **{"queue": "default", "max_attempts": 20, **fields})


async def followers_of_the_context_are_sent_with_the_completion(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> str:
        context.then(
            NewJob(kind="mail", payload={"to": "Ada"}, queue="mail", key="ada", delay=60, priority=3)
        )
        await asyncio.to_thread(context.then, NEXT, NEXT)
        return "greeted"

    await work(greet)
    (await server.stream()).assign(assignment(7))

    result = await server.result(7)
    assert result.claim == pb.Claim(job_id=7, fence=70, worker_id=1)
    assert result.complete.result == '"greeted"'
    assert list(result.complete.then) == [
        _sent("mail", '{"to":"Ada"}', queue="mail", key="ada", delay=Duration(seconds=60), priority=3),
        _sent("next"),
        _sent("next"),
    ]


async def followers_of_complete_are_sent_after_those_of_the_context(
    server: FakeServer, work: RunWorker
) -> None:
    async def greet(payload: Any, context: Context) -> Complete:
        complete = Complete({"n": 1}).then(NewJob(kind="second")).then(NewJob(kind="third"))
        context.then(NewJob(kind="first"))
        return complete

    await work(greet)
    (await server.stream()).assign(assignment())

    complete = (await server.result(1)).complete
    assert complete.result == '{"n":1}'
    assert [job.kind for job in complete.then] == ["first", "second", "third"]


async def complete_without_a_result_or_followers_is_a_plain_completion(
    server: FakeServer, work: RunWorker
) -> None:
    async def greet(payload: Any, context: Context) -> Complete:
        return Complete()

    await work(greet, history="failures_only")
    (await server.stream()).assign(assignment())

    assert (await server.result(1)).complete == pb.Complete(forget=True)


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Snooze(60), "snooze"),
        (Retry(5, "rate limited"), "fail"),
        (Bury("no such account"), "bury"),
        (ValueError("no"), "fail"),
    ],
)
async def an_attempt_that_does_not_complete_sends_no_followers(
    server: FakeServer, work: RunWorker, raised: Exception, outcome: str
) -> None:
    async def greet(payload: Any, context: Context) -> None:
        context.then(NEXT)
        raise raised

    await work(greet)
    (await server.stream()).assign(assignment())

    result = await server.result(1)
    assert result.WhichOneof("outcome") == outcome
    assert b"next" not in result.SerializeToString()


async def an_attempt_that_exceeds_its_timeout_sends_no_followers(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        context.then(NEXT)
        await asyncio.Event().wait()

    await work(greet)
    (await server.stream()).assign(assignment(timeout=Duration(nanos=20_000_000)))

    result = await server.result(1)
    assert result.fail.cause == pb.FAILURE_CAUSE_TIMEOUT
    assert b"next" not in result.SerializeToString()


async def a_released_attempt_sends_no_followers(server: FakeServer, work: RunWorker) -> None:
    started = asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        context.then(NEXT)
        started.set()
        await asyncio.Event().wait()

    worker = await work(greet, grace=0)
    (await server.stream()).assign(assignment())
    await asyncio.wait_for(started.wait(), TIMEOUT)
    worker.stop()

    assert (await server.result(1)).release == pb.Release()
    assert [result.WhichOneof("outcome") for result in server.results] == ["release"]


async def the_next_attempt_starts_without_followers(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        if context.attempt == 1:
            context.then(NEXT)
            raise ValueError("once more")

    await work(greet)
    stream = await server.stream()
    stream.assign(assignment(1))
    await server.result(1, "fail")
    stream.assign(assignment(1, fence=11, attempt=2))

    assert not (await server.result(1, "complete")).complete.then


async def an_invalid_follower_fails_the_attempt_where_it_is_added(
    server: FakeServer, work: RunWorker
) -> None:
    wrong: list[tuple[Any, str]] = [
        (NewJob(kind="next", payload={1, 2}), "TypeError: Object of type set is not JSON serializable"),
        (NewJob(kind="next", metadata=float("nan")), "ValueError: Out of range float values are not JSON"),
        (NewJob(kind="next", run_at=datetime(2030, 1, 1)), "ValueError: run_at `2030-01-01 00:00:00` has no"),
        ("next", "TypeError: `'next'` is not a job: give a `NewJob`"),
    ]

    async def greet(payload: int, context: Context) -> Complete | None:
        if context.id % 2:
            return Complete().then(NEXT, wrong[payload][0])
        context.then(NEXT, wrong[payload][0])
        return None

    await work(greet)
    stream = await server.stream()
    for n, (_, error) in enumerate(wrong):
        for job_id in (2 * n + 1, 2 * n + 2):
            stream.assign(assignment(job_id, str(n)))
            assert (await server.result(job_id)).fail.error.startswith(error)


async def an_invalid_follower_adds_none_of_its_call(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        context.then(NewJob(kind="first"))
        with pytest.raises(TypeError):
            context.then(NEXT, NewJob(kind="next", payload={1, 2}))
        with pytest.raises(ValueError, match="101 followers, the limit is 100"):
            context.then(*[NEXT] * 100)

    await work(greet)
    (await server.stream()).assign(assignment())

    assert [job.kind for job in (await server.result(1)).complete.then] == ["first"]


@pytest.mark.parametrize(("of_context", "of_complete"), [(101, 0), (0, 101), (51, 50)])
async def more_than_100_followers_fail_the_attempt(
    server: FakeServer, work: RunWorker, of_context: int, of_complete: int
) -> None:
    async def greet(payload: Any, context: Context) -> Complete:
        context.then(*[NEXT] * of_context)
        return Complete().then(*[NEXT] * of_complete)

    await work(greet)
    (await server.stream()).assign(assignment())

    assert "101 followers, the limit is 100: add one job" in (await server.result(1)).fail.error


async def exactly_100_followers_are_sent(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> Complete:
        context.then(*[NEXT] * 50)
        return Complete().then(*[NEXT] * 50)

    await work(greet)
    (await server.stream()).assign(assignment())

    assert len((await server.result(1)).complete.then) == 100


async def followers_above_the_size_of_a_request_fail_the_attempt(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.followers.FOLLOWERS_BYTES_MAX", 1000)

    async def greet(payload: Any, context: Context) -> None:
        context.then(*[NewJob(kind="next", payload="x" * 400)] * payload)

    await work(greet)
    (await server.stream()).assign(assignment(1, "2"), assignment(2, "3"))

    assert len((await server.result(1)).complete.then) == 2
    error = (await server.result(2)).fail.error
    assert error.startswith("the followers have ") and "the limit is 1000: store large payloads" in error


async def followers_that_the_server_refuses_fail_the_attempt_without_them(
    server: FakeServer, work: RunWorker
) -> None:
    server.is_bad = lambda result: bool(result.complete.then)

    async def greet(payload: Any, context: Context) -> None:
        context.then(NEXT)

    await work(greet)
    (await server.stream()).assign(assignment())

    refused = await server.result(1, "fail")
    assert refused.fail.error == "the server refused the result: it cannot be stored"
    assert b"next" not in refused.SerializeToString()


async def a_follower_cannot_be_added_after_the_attempt(server: FakeServer, work: RunWorker) -> None:
    contexts: list[Context] = []

    async def greet(payload: Any, context: Context) -> None:
        contexts.append(context)

    await work(greet)
    (await server.stream()).assign(assignment())
    await server.result(1)

    with pytest.raises(RuntimeError, match="the attempt of job `1` has ended"):
        contexts[0].then(NEXT)
