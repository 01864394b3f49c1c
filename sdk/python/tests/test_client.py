"""The client sends jobs unchanged, and returns jobs as the server has them."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fake_server import FakeJobs, FakeServer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pitwheel import Client, Enqueued, NewJob
from pitwheel._proto import pitwheel_pb2 as pb

NOON = datetime(2030, 1, 2, 12, 0, 0, 250_000, tzinfo=timezone.utc)
NOON_STAMP = Timestamp(seconds=1_893_585_600, nanos=250_000_000)


@pytest.fixture
def jobs(server: FakeServer) -> FakeJobs:
    return server.jobs


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with Client(server.address) as client:
        yield client


async def a_job_is_enqueued_with_all_its_options(client: Client, jobs: FakeJobs) -> None:
    enqueued = await client.enqueue(
        "greet",
        {"name": "Zoë"},
        queue="mail",
        run_at=NOON,
        priority=-3,
        max_attempts=5,
        timeout=timedelta(minutes=1),
        key="ada",
        metadata={"tenant": 7},
    )

    assert enqueued == Enqueued(id=1, is_new=False)
    assert list(jobs.requests[0].jobs) == [
        pb.NewJob(
            kind="greet",
            payload='{"name":"Zoë"}',
            queue="mail",
            run_at=NOON_STAMP,
            priority=-3,
            max_attempts=5,
            timeout=Duration(seconds=60),
            key="ada",
            metadata='{"tenant":7}',
        )
    ]


async def options_that_are_not_given_have_their_defaults(client: Client, jobs: FakeJobs) -> None:
    assert await client.enqueue("greet") == Enqueued(id=1, is_new=True)

    assert list(jobs.requests[0].jobs) == [
        pb.NewJob(kind="greet", payload="{}", queue="default", max_attempts=20)
    ]


async def a_delay_is_sent_as_a_delay(client: Client, jobs: FakeJobs) -> None:
    await client.enqueue("greet", delay=60)

    job = jobs.requests[0].jobs[0]
    assert (job.delay.seconds, job.HasField("run_at")) == (60, False)


async def many_jobs_are_split_into_requests_within_the_servers_limits(client: Client, jobs: FakeJobs) -> None:
    enqueued = await client.enqueue_many(NewJob(kind="greet", payload=n) for n in range(1100))
    assert len(enqueued) == 1100
    assert [len(request.jobs) for request in jobs.requests] == [500, 500, 100]

    jobs.requests.clear()
    await client.enqueue_many(NewJob(kind="greet", payload="x" * 200_000) for _ in range(30))
    assert sum(len(request.jobs) for request in jobs.requests) == 30
    assert all(request.ByteSize() < 4 * 1024 * 1024 for request in jobs.requests)

    assert await client.enqueue_many([]) == []


async def an_invalid_job_is_refused_before_anything_is_sent(client: Client, jobs: FakeJobs) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"payload": {1, 2}}, TypeError, "JSON"),
        ({"payload": float("nan")}, ValueError, "JSON"),
        ({"run_at": datetime(2030, 1, 1)}, ValueError, "time zone"),
        ({"run_at": NOON, "delay": 1}, ValueError, "both"),
    ]
    for options, error, words in wrong:
        with pytest.raises(error, match=words):
            await client.enqueue_many([NewJob(kind="greet"), NewJob(kind="greet", **options)])
    assert jobs.requests == []


async def a_job_is_returned_with_all_its_fields(client: Client, jobs: FakeJobs) -> None:
    jobs.job = pb.Job(
        id=7,
        state=pb.JOB_STATE_DONE,
        kind="greet",
        queue="mail",
        attempt=2,
        max_attempts=20,
        run_at=NOON_STAMP,
        enqueued_at=NOON_STAMP,
        finished_at=NOON_STAMP,
        payload='{"name":"Ada"}',
        progress=0.5,
        errors='[{"error":"ValueError: no"}]',
        result='{"greeted":"Ada"}',
    )

    job = await client.get(7)
    assert job is not None
    assert (job.state, job.payload, job.result) == ("done", {"name": "Ada"}, {"greeted": "Ada"})
    assert (job.run_at, job.claimed_at, job.finished_at) == (NOON, None, NOON)
    assert (job.key, job.metadata, job.note, job.progress) == (None, None, None, 0.5)
    assert job.errors == [{"error": "ValueError: no"}]


async def a_job_of_a_redacted_kind_has_no_payload(client: Client, jobs: FakeJobs) -> None:
    jobs.job = pb.Job(
        id=7,
        state=pb.JOB_STATE_WAITING,
        kind="greet",
        queue="default",
        run_at=NOON_STAMP,
        enqueued_at=NOON_STAMP,
        errors="[]",
        redacted=True,
    )

    job = await client.get(7)
    assert job is not None
    assert (job.redacted, job.payload, job.metadata, job.result) == (True, None, None, None)


async def an_unknown_job_is_none(client: Client) -> None:
    assert await client.get(8) is None


async def a_job_is_cancelled(client: Client, jobs: FakeJobs) -> None:
    assert await client.cancel(7) is True
    assert jobs.cancelled == [7]
