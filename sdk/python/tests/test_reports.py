"""Reports are sent in batches and repeated until answered. One refused result does not block the others."""

import asyncio
import json
import logging
from typing import Any

import grpc
import pytest
from conftest import RunWorker
from fake_server import PROXY_413, TIMEOUT, FakeServer, assignment

from pitwheel import Context, reporter
from pitwheel._proto import pitwheel_pb2 as pb
from pitwheel.backoff import Backoff


async def _echo(payload: Any, context: Context) -> Any:
    return payload


async def a_burst_is_one_request(server: FakeServer, work: RunWorker) -> None:
    await work(_echo, slots=500)
    (await server.stream()).assign(*(assignment(n) for n in range(1, 501)))

    await server.result(500)
    assert [len(request.results) for request in server.requests] == [500]


async def results_of_the_same_moment_are_one_request(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough that a busy machine does not split the moment.
    monkeypatch.setattr(reporter, "LINGER_SECONDS", 0.2)
    done = asyncio.Event()

    async def greet(turns: int, context: Context) -> None:
        if turns == 0:
            await done.wait()
        # Turns of the event loop, not time: each job ends some turns after the one before.
        for _ in range(turns):
            await asyncio.sleep(0)

    await work(greet)
    (await server.stream()).assign(*(assignment(n + 1, str(n)) for n in range(6)))

    await server.result(6)
    assert [len(request.results) for request in server.requests] == [5]
    done.set()


async def results_that_arrive_during_a_report_are_the_next_batch(server: FakeServer, work: RunWorker) -> None:
    await work(_echo, slots=3000)
    stream = await server.stream()
    server.answers.clear()
    stream.assign(assignment(1))
    await server.result(1)
    stream.assign(*(assignment(n) for n in range(2, 2502)))
    await server.until(lambda: len(server.heartbeats) > 3)
    assert len(server.requests) == 1
    server.answers.set()

    await server.result(2501)
    assert [len(request.results) for request in server.requests] == [1, 1000, 1000, 500]


async def a_request_stays_within_the_servers_size_limit(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> str:
        return "x" * 250_000

    await work(greet)
    (await server.stream()).assign(*(assignment(n) for n in range(1, 21)))

    await server.result(20)
    assert all(request.ByteSize() < 4 * 1024 * 1024 for request in server.requests)
    assert len(server.results) == 20


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ],
)
async def a_report_is_repeated_until_it_is_answered(
    server: FakeServer, work: RunWorker, code: grpc.StatusCode
) -> None:
    server.refuse_reports = [code, code]
    await work(_echo)
    (await server.stream()).assign(assignment(1, json.dumps("x" * 100_000)))

    await server.until(lambda: len(server.requests) == 3)
    assert server.requests[0] == server.requests[1] == server.requests[2]


async def a_refused_result_fails_only_its_own_job(server: FakeServer, work: RunWorker) -> None:
    def is_bad(result: pb.Result) -> bool:
        return result.complete.result == '"bad"'

    server.is_bad = is_bad
    await work(_echo)
    (await server.stream()).assign(*(assignment(n, '"bad"' if n == 5 else '"good"') for n in range(1, 9)))

    refused = await server.result(5, "fail")
    assert refused.fail.error == "the server refused the result: it cannot be stored"

    def written() -> list[int]:
        taken = [request for request in server.requests if not any(map(is_bad, request.results))]
        return sorted(result.claim.job_id for request in taken for result in request.results)

    await server.until(lambda: written() == [1, 2, 3, 4, 5, 6, 7, 8])


async def a_result_that_is_refused_by_itself_fails_only_its_own_job(
    server: FakeServer, work: RunWorker
) -> None:
    server.problems[2] = "the result is not JSON"
    await work(_echo)
    (await server.stream()).assign(*(assignment(n) for n in range(1, 4)))

    refused = await server.result(2, "fail")
    assert refused.fail.error == "the server refused the result: the result is not JSON"
    reported = [result.claim.job_id for request in server.requests for result in request.results]
    assert sorted(reported) == [1, 2, 2, 3]


async def the_result_of_a_locked_job_is_reported_again(server: FakeServer, work: RunWorker) -> None:
    server.locked = {1}
    await work(_echo)
    (await server.stream()).assign(assignment(1))
    await server.until(lambda: len(server.requests) == 2)
    assert server.requests[0].results == server.requests[1].results


async def a_refused_failure_blocks_no_other_and_is_reported_until_it_is_accepted(
    server: FakeServer, work: RunWorker
) -> None:
    server.is_bad = lambda result: result.claim.job_id == 1
    await work(_echo)
    stream = await server.stream()
    stream.assign(assignment(1))
    await server.result(1, "fail")
    stream.assign(assignment(2))

    await server.result(2)
    await server.until(lambda: sum(result.HasField("fail") for result in server.results) > 2)
    stream.end()
    await server.ended(stream.worker_id, [(1, 10)])
    server.is_bad = lambda _: False
    await server.ended(stream.worker_id, [])
    assert server.results[-1].fail.error == "the server refused the result: it cannot be stored"


async def the_pauses_between_refused_failures_grow_to_five_seconds(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    next_pause = Backoff.next

    def recorded(backoff: Backoff) -> float:
        pauses.append(next_pause(backoff))
        return 0.0

    monkeypatch.setattr(Backoff, "next", recorded)
    server.is_bad = lambda _: True
    await work(_echo)
    (await server.stream()).assign(assignment(1))
    await server.until(lambda: len(server.results) > 8)
    server.is_bad = lambda _: False

    longest = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert all(0.5 * most <= pause <= most for pause, most in zip(pauses, longest, strict=False))


_OF_A_PROXY = [PROXY_413, (grpc.StatusCode.RESOURCE_EXHAUSTED, "received message larger than max")]


_TOO_SLOW = (grpc.StatusCode.DEADLINE_EXCEEDED, "the body was not complete after 10s")


@pytest.mark.parametrize("too_large", [*_OF_A_PROXY, _TOO_SLOW])
async def a_report_that_is_too_large_for_a_proxy_or_the_connection_is_split(
    server: FakeServer, work: RunWorker, too_large: tuple[grpc.StatusCode, str]
) -> None:
    server.bytes_max, server.too_large = 250_000, too_large
    await work(_echo)
    (await server.stream()).assign(*(assignment(n, json.dumps("x" * 100_000)) for n in range(1, 9)))

    def written() -> list[int]:
        taken = [request for request in server.requests if request.ByteSize() < 250_000]
        return sorted(result.claim.job_id for request in taken for result in request.results)

    await server.until(lambda: written() == [1, 2, 3, 4, 5, 6, 7, 8])
    assert all(result.HasField("complete") for result in server.results)


async def no_result_of_a_split_report_is_called_lost_that_may_have_been_written_before(
    server: FakeServer, work: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.bytes_max, server.too_large = 150_000, _TOO_SLOW
    server.lost = {1, 2}
    await work(_echo)
    stream = await server.stream()
    stream.assign(*(assignment(n, json.dumps("x" * 100_000)) for n in (1, 2)))
    await server.until(lambda: len(server.requests) == 3)
    stream.end()

    await server.ended(stream.worker_id, [])
    assert "lost" not in caplog.text


@pytest.mark.parametrize("too_large", _OF_A_PROXY)
async def a_result_that_is_too_large_for_a_proxy_fails_only_its_own_job(
    server: FakeServer, work: RunWorker, too_large: tuple[grpc.StatusCode, str]
) -> None:
    server.bytes_max, server.too_large = 150_000, too_large
    await work(_echo)
    payloads = [json.dumps("x" * size) for size in (10, 200_000, 10)]
    (await server.stream()).assign(*(assignment(n, payload) for n, payload in enumerate(payloads, 1)))

    error = (await server.result(2, "fail")).fail.error
    assert error.startswith("the report of the result has 200")
    assert error.endswith(f"({too_large[0].name}: {too_large[1]})")
    for job_id in (1, 3):
        assert (await server.result(job_id)).HasField("complete")


async def a_small_report_is_not_too_large_for_a_proxy(server: FakeServer, work: RunWorker) -> None:
    server.bytes_max = 0
    await work(_echo)
    (await server.stream()).assign(assignment(1))
    await server.until(lambda: len(server.requests) > 2)
    server.bytes_max = 1000

    await server.until(lambda: len(server.requests) > 3)
    assert all(result.HasField("complete") for result in server.results)


async def results_and_held_jobs_name_their_worker(server: FakeServer, work: RunWorker) -> None:
    done = asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        if context.id > 1:
            await done.wait()

    await work(greet)
    first = await server.stream(1)
    first.assign(assignment(1), assignment(2))
    assert (await server.result(1)).claim.worker_id == first.worker_id
    first.end()
    second = await server.stream(2)
    second.assign(assignment(3))
    (held,) = (await server.ended(first.worker_id, [(2, 20)])).ended
    assert [claim.worker_id for claim in held.holding] == [first.worker_id]
    done.set()
    workers = [(await server.result(job_id)).claim.worker_id for job_id in (2, 3)]
    assert workers == [first.worker_id, second.worker_id]


async def a_lost_claim_is_logged(
    server: FakeServer, work: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.lost = {1}
    await work(_echo)
    stream = await server.stream()
    stream.assign(assignment(1))
    await server.result(1)
    stream.assign(assignment(2))
    await server.result(2)

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "lost: job 1 (fence 10) was given to another worker or settled while it was running here"
    ]


async def a_result_that_was_written_before_is_settled_and_not_logged(
    server: FakeServer, work: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.already = {1}
    await work(_echo)
    stream = await server.stream()
    stream.assign(assignment(1))
    await server.result(1)
    stream.end()
    await server.ended(stream.worker_id, [])
    assert not [record for record in caplog.records if "lost" in record.getMessage()]


async def the_latest_progress_is_sent_about_once_a_second(server: FakeServer, work: RunWorker) -> None:
    done = asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        context.progress(0.1, "begun")
        await asyncio.to_thread(context.progress, 7, "half \0way")
        await done.wait()

    await work(greet)
    stream = await server.stream()
    stream.assign(assignment(1))

    progress = (await server.result(1, "progress")).progress
    assert (progress.fraction, progress.note) == (1.0, "half way")
    done.set()
    # A server skips the progress of a job that is locked.
    assert (await server.result(1, "complete")).last_progress == progress
    assert [result.WhichOneof("outcome") for result in server.results] == ["progress", "complete"]


async def the_last_progress_is_sent_with_the_result(server: FakeServer, work: RunWorker) -> None:
    async def greet(payload: Any, context: Context) -> None:
        context.progress(0.1, "begun")
        context.progress(0.9, "almost")

    await work(greet)
    (await server.stream()).assign(assignment(1))

    progress = (await server.result(1, "complete")).last_progress
    assert (round(progress.fraction, 3), progress.note) == (0.9, "almost")


async def the_last_progress_is_sent_with_the_failure_in_the_place_of_a_refused_result(
    server: FakeServer, work: RunWorker
) -> None:
    async def greet(payload: Any, context: Context) -> str:
        context.progress(0.9, "almost")
        return "refused"

    server.problems[1] = "the result is not JSON"
    await work(greet)
    (await server.stream()).assign(assignment(1))

    assert (await server.result(1, "fail")).last_progress.note == "almost"


async def progress_of_a_job_that_has_ended_is_sent_with_its_result(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.reporter.PROGRESS_INTERVAL_SECONDS", 0.01)
    said, done = asyncio.Event(), asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        if context.id == 2:
            context.progress(0.5)
            said.set()
            await done.wait()

    await work(greet)
    stream = await server.stream()
    server.answers.clear()
    stream.assign(assignment(1))
    await server.result(1)
    stream.assign(assignment(2))
    await asyncio.wait_for(said.wait(), TIMEOUT)
    await server.until(lambda: len(server.heartbeats) > 3)
    done.set()
    server.answers.set()

    assert (await server.result(2)).last_progress.fraction == 0.5
    assert [result.WhichOneof("outcome") for result in server.results] == ["complete", "complete"]


async def only_the_newest_progress_waits_for_the_server(
    server: FakeServer, work: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitwheel.reporter.PROGRESS_INTERVAL_SECONDS", 0.01)
    collected: asyncio.Queue[pb.Progress] = asyncio.Queue()
    said, done = asyncio.Event(), asyncio.Event()
    collect = Context._progress_to_send

    def observed(context: Context) -> pb.Progress | None:
        if (progress := collect(context)) is not None:
            collected.put_nowait(progress)
        return progress

    monkeypatch.setattr(Context, "_progress_to_send", observed)

    async def greet(payload: Any, context: Context) -> None:
        if context.id > 1:
            for eighths in range(8):
                context.progress(eighths / 8)
                await collected.get()
            said.set()
            await done.wait()

    await work(greet)
    stream = await server.stream()
    server.answers.clear()
    stream.assign(assignment(1))
    await server.result(1)
    stream.assign(assignment(2))
    await asyncio.wait_for(said.wait(), TIMEOUT)
    server.answers.set()
    await server.result(2, "progress")
    done.set()

    await server.result(2, "complete")
    reported = [result for result in server.results if result.claim.job_id == 2]
    assert [result.progress.fraction for result in reported if result.HasField("progress")] == [0.875]


async def lost_progress_sets_cancelled(server: FakeServer, work: RunWorker) -> None:
    heard = asyncio.Event()

    async def greet(payload: Any, context: Context) -> None:
        context.progress(0.5)
        await context.cancelled.wait()
        heard.set()

    server.lost = {1}
    await work(greet)
    (await server.stream()).assign(assignment(1))

    await asyncio.wait_for(heard.wait(), TIMEOUT)
