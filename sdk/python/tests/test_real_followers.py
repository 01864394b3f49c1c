"""Followers against a real server: they exist if and only if the completion of their job was written.

Needs `pitwheel serve` at PITWHEEL_SERVER (host:port), on the database of PITWHEEL_DATABASE_URL.
"""

import asyncio
from typing import Any

import grpc.aio
import pytest
from conftest import running
from real_server import SERVER, TIMEOUT, count, finished, needs_server

from pitwheel import Bury, Client, Complete, Context, NewJob, Worker
from pitwheel._proto import pitwheel_pb2 as pb
from pitwheel._proto.pitwheel_pb2_grpc import WorkerServiceStub

pytestmark = needs_server


async def followers_of_a_completed_job_run(client: Client, queue: str) -> None:
    ran: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("import")
    async def import_file(payload: Any, context: Context) -> Complete:
        context.then(
            NewJob(kind="index", payload=1, queue=queue), NewJob(kind="index", payload=2, queue=queue)
        )
        return Complete("imported").then(NewJob(kind="notify", payload="Ada", queue=queue))

    @worker.handler("index")
    async def index(payload: Any, context: Context) -> None:
        ran.put_nowait((context.kind, payload))

    @worker.handler("notify")
    async def notify(payload: Any, context: Context) -> None:
        ran.put_nowait((context.kind, payload))

    async with running(worker):
        job = await finished(client, (await client.enqueue("import", queue=queue)).id)
        assert (job.state, job.result) == ("done", "imported")
        followers = [await asyncio.wait_for(ran.get(), TIMEOUT) for _ in range(3)]

    assert sorted(followers, key=str) == [("index", 1), ("index", 2), ("notify", "Ada")]
    assert await asyncio.to_thread(count, queue) == 4


async def a_lost_claim_leaves_no_followers(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("import")
    async def import_file(payload: Any, context: Context) -> None:
        attempts.append(context.fence)
        if len(attempts) == 1:
            # Settles the claim before this attempt does: its own report is then lost, and the job is claimed again.
            claim = pb.Claim(job_id=context.id, fence=context.fence)
            release = pb.ReportResultRequest(results=[pb.Result(claim=claim, release=pb.Release())])
            async with grpc.aio.insecure_channel(SERVER) as channel:
                response = await WorkerServiceStub(channel).ReportResult(release)
            assert list(response.written) == [pb.WRITTEN_YES]
            context.then(NewJob(kind="lost", queue=f"{queue}-followers"))
        else:
            context.then(NewJob(kind="kept", queue=f"{queue}-followers"))

    async with running(worker):
        job = await finished(client, (await client.enqueue("import", queue=queue)).id)

    assert (job.state, len(attempts)) == ("done", 2)
    assert f"lost: job {job.id} (fence {attempts[0]})" in caplog.text
    assert await asyncio.to_thread(count, f"{queue}-followers") == 1


async def a_follower_with_the_key_of_a_live_job_is_not_added(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("import")
    async def import_file(payload: Any, context: Context) -> None:
        context.then(NewJob(kind="notify", queue=queue, key=queue), NewJob(kind="notify", queue=queue))

    waiting = await client.enqueue("notify", queue=queue, key=queue, delay=3600)
    async with running(worker):
        job = await finished(client, (await client.enqueue("import", queue=queue)).id)

    assert (job.state, waiting.is_new) == ("done", True)
    assert await asyncio.to_thread(count, queue) == 3, (
        "the job, the waiting one and the follower without a key"
    )


async def a_job_that_is_not_completed_has_no_followers(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("import")
    async def import_file(payload: Any, context: Context) -> None:
        context.then(NewJob(kind="notify", queue=queue))
        raise Bury("no such file")

    async with running(worker):
        job = await finished(client, (await client.enqueue("import", queue=queue)).id)

    assert job.state == "dead"
    assert await asyncio.to_thread(count, queue) == 1
