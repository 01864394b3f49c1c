"""No report is larger than the server accepts, whatever handlers return and say."""

import asyncio

import pytest
from fake_server import TIMEOUT, assignment

from pitwheel import NewJob
from pitwheel._proto import pitwheel_pb2 as pb
from pitwheel.attempt import ERROR_CHARS_MAX, Attempt, completed, failed
from pitwheel.context import NOTE_CHARS_MAX
from pitwheel.followers import FOLLOWERS_BYTES_MAX, FOLLOWERS_MAX
from pitwheel.lease import Lease, now
from pitwheel.new_job import to_proto
from pitwheel.reporter import RESULTS_MAX
from pitwheel.result import RESULT_BYTES_MAX
from pitwheel.runner import Runner
from pitwheel.stream import HeldJob, Stream

# The server refuses larger requests.
REQUEST_BYTES_MAX = 4 * 1024 * 1024
LARGE_NUMBER = 2**62
# Four bytes in UTF-8.
WIDE = "🦀"


def _held(number: int) -> HeldJob:
    attempt = Attempt(None, assignment(LARGE_NUMBER + number, fence=LARGE_NUMBER))
    attempt.context.progress(0.5, WIDE * NOTE_CHARS_MAX)
    return HeldJob(attempt, Stream(LARGE_NUMBER, None, Lease(30, now())))


def _largest_completion() -> pb.Result:
    followers = [to_proto(NewJob(kind="index", payload="x" * 31_000)) for _ in range(FOLLOWERS_MAX - 1)]
    last = to_proto(NewJob(kind="index", payload="x" * 100_000))
    rest = FOLLOWERS_BYTES_MAX - sum(job.ByteSize() for job in [*followers, last])
    last = to_proto(NewJob(kind="index", payload="x" * (100_000 + rest)))
    result = completed("x" * (RESULT_BYTES_MAX - len('""')), [*followers, last], False)
    assert result.HasField("complete"), result.fail.error
    return result


@pytest.mark.parametrize(
    ("result", "count"),
    [
        (_largest_completion(), 3),
        (failed(WIDE * ERROR_CHARS_MAX), 2 * RESULTS_MAX),
        (completed("x" * 2047, [], False), 2 * RESULTS_MAX),
        (completed(None, [], False), 2 * RESULTS_MAX),
    ],
    ids=["largest completion", "longest error", "results of 2 KB", "notes only"],
)
async def the_largest_results_and_progress_are_within_the_limit(result: pb.Result, count: int) -> None:
    sizes: list[int] = []
    reported = 0

    async def send(request: pb.ReportResultRequest, timeout: float) -> pb.ReportResultResponse:
        nonlocal reported
        sizes.append(request.ByteSize())
        reported += len(request.results)
        return pb.ReportResultResponse(written=[pb.WRITTEN_YES] * len(request.results))

    runner = Runner({}, count, send)
    for number in range(count):
        own = pb.Result()
        own.CopyFrom(result)
        runner._finish(_held(number), own)
    for number in range(2 * RESULTS_MAX):
        held = _held(count + number)
        progress = held.attempt.context._progress_to_send()
        assert progress is not None
        runner.reporter._progress[held] = progress
    runner.reporter.close()
    await asyncio.wait_for(runner.reporter.run(), TIMEOUT)

    assert reported == count + 2 * RESULTS_MAX
    assert max(sizes) <= REQUEST_BYTES_MAX
