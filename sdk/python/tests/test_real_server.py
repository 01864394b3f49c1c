"""Worker and client against a real server.

Needs `pitwheel serve` at PITWHEEL_SERVER (host:port), on the database of PITWHEEL_DATABASE_URL.
"""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import psycopg
import pytest
from conftest import running
from database import URL
from real_server import SERVER, TIMEOUT, count, finished, job_once, needs_server

import pitwheel
from pitwheel import Bury, Client, Context, NewJob, Retry, Snooze, Worker

pytestmark = needs_server


async def a_job_runs_and_its_result_can_be_read(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("greet")
    async def greet(payload: Any, context: Context) -> Any:
        return {"greeted": payload["name"], "trace": context.metadata["traceparent"]}

    enqueued = await client.enqueue("greet", {"name": "Ada"}, queue=queue, metadata={"traceparent": "00-1"})
    assert enqueued.is_new
    async with running(worker):
        job = await finished(client, enqueued.id)

    assert (job.state, job.attempt, job.result) == ("done", 1, {"greeted": "Ada", "trace": "00-1"})


async def a_job_enqueued_in_a_transaction_runs_after_the_commit(client: Client, queue: str) -> None:
    ran: list[Any] = []
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("greet")
    async def greet(payload: Any, context: Context) -> None:
        ran.append(payload)

    async with running(worker):
        with psycopg.connect(URL) as connection:
            dropped = pitwheel.enqueue(connection, "greet", "dropped", queue=queue)
            connection.rollback()
            kept = pitwheel.enqueue(connection, "greet", "kept", queue=queue)
        await finished(client, kept)

    assert ran == ["kept"]
    assert await client.get(dropped) is None


async def a_handler_can_retry_snooze_and_bury_its_job(client: Client, queue: str) -> None:
    seen: dict[str, int] = {}
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("decide")
    async def decide(payload: str, context: Context) -> None:
        seen[payload] = seen.get(payload, 0) + 1
        if seen[payload] > 1:
            return
        if payload == "raise":
            raise Retry(0, "not there yet")
        if payload == "snooze":
            raise Snooze(timedelta(milliseconds=10))
        raise Bury("no such account")

    async with running(worker):
        ids = {
            name: (await client.enqueue("decide", name, queue=queue)).id
            for name in ("raise", "snooze", "bury")
        }
        jobs = {name: await finished(client, job_id) for name, job_id in ids.items()}

    assert (jobs["raise"].state, jobs["raise"].attempt, len(jobs["raise"].errors)) == ("done", 2, 1)
    assert (jobs["snooze"].state, jobs["snooze"].attempt, jobs["snooze"].errors) == ("done", 1, [])
    assert (jobs["bury"].state, len(jobs["bury"].errors)) == ("dead", 1)


async def a_job_whose_last_attempt_fails_is_dead(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("fail")
    async def fail(payload: Any, context: Context) -> None:
        if payload == "hang":
            await asyncio.Event().wait()
        raise ValueError("never works")

    async with running(worker):
        raised = await client.enqueue("fail", queue=queue, max_attempts=1)
        hung = await client.enqueue("fail", "hang", queue=queue, max_attempts=1, timeout=0.1)
        jobs = [await finished(client, raised.id), await finished(client, hung.id)]

    assert [job.state for job in jobs] == ["dead", "dead"]
    assert "ValueError: never works" in str(jobs[0].errors)
    assert "timeout" in str(jobs[1].errors)


async def a_running_job_reports_progress_and_can_be_cancelled(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("long")
    async def long(payload: Any, context: Context) -> None:
        context.progress(0.5, "half way")
        await context.cancelled.wait()
        raise RuntimeError("stopped")

    async with running(worker):
        job_id = (await client.enqueue("long", queue=queue)).id
        job = await job_once(client, job_id, lambda job: job.progress is not None)
        assert (job.state, job.progress, job.note) == ("running", 0.5, "half way")
        assert await client.cancel(job_id) is False
        job = await finished(client, job_id)

    assert job.state == "cancelled"


async def the_last_note_of_a_short_job_is_in_its_history(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("short")
    async def short(payload: Any, context: Context) -> None:
        context.progress(1, "all of it")

    async with running(worker):
        job = await finished(client, (await client.enqueue("short", queue=queue)).id)

    assert (job.state, job.note) == ("done", "all of it")


async def a_waiting_job_is_cancelled_at_once(client: Client, queue: str) -> None:
    job_id = (await client.enqueue("greet", queue=queue, delay=3600)).id

    assert await client.cancel(job_id) is True
    assert (await finished(client, job_id)).state == "cancelled"


async def a_job_released_by_a_shutdown_is_run_by_the_next_worker(client: Client, queue: str) -> None:
    started = asyncio.Event()
    job_id = (await client.enqueue("greet", queue=queue)).id
    first, second = Worker(SERVER, queues=[queue], grace=0), Worker(SERVER, queues=[queue])

    @first.handler("greet")
    async def hang(payload: Any, context: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    @second.handler("greet")
    async def greet(payload: Any, context: Context) -> int:
        return context.attempt

    async with running(first):
        await asyncio.wait_for(started.wait(), TIMEOUT)
    async with running(second):
        job = await finished(client, job_id)

    assert (job.state, job.result) == ("done", 1), "the attempt that was released is not counted"


def _call(method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"http://{SERVER}/api/v1/{path}", None if body is None else json.dumps(body).encode(), method=method
    )
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return json.load(answer)


async def a_valid_token_is_accepted_and_a_wrong_one_is_refused(queue: str) -> None:
    made = await asyncio.to_thread(_call, "POST", "tokens", {"name": queue, "role": "worker"})

    async with Client(SERVER, token=made["secret"]) as client:
        assert (await client.enqueue("greet", queue=queue)).is_new
        with pytest.raises(grpc.aio.AioRpcError, match="worker") as refused:
            await client.cancel(1)
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    worker = Worker(SERVER, queues=[queue], token="wrong")

    @worker.handler("greet")
    async def greet(payload: Any, context: Context) -> None:
        pass

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(worker.run(), TIMEOUT)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def a_viewer_reads_a_failed_job_of_a_redacted_kind_without_its_contents(
    client: Client, queue: str
) -> None:
    await asyncio.to_thread(_call, "PUT", f"kinds/{queue}", {"redacted": True})
    viewer = await asyncio.to_thread(_call, "POST", "tokens", {"name": queue, "role": "viewer"})
    worker = Worker(SERVER, queues=[queue])

    @worker.handler(queue)
    async def fail(payload: Any, context: Context) -> None:
        context.progress(0.5, "secret note")
        raise Bury("secret error")

    secrets: dict[str, Any] = {"key": "secret key", "metadata": "secret metadata", "lane": "secret lane"}
    job_id = (await client.enqueue(queue, "secret payload", queue=queue, **secrets)).id
    async with running(worker):
        full = await finished(client, job_id)
    async with Client(SERVER, token=viewer["secret"]) as of_viewer:
        seen = await of_viewer.get(job_id)

    assert (full.payload, full.note, full.errors[0]["message"]) == (
        "secret payload",
        "secret note",
        "secret error",
    )
    assert seen is not None and seen.redacted and "secret" not in str(seen)
    assert (seen.state, seen.kind, seen.attempt, len(seen.errors)) == ("dead", queue, 1, 1)
    assert (seen.payload, seen.key, seen.note, seen.errors[0]["message"]) == (None, None, None, None)


async def a_worker_that_is_asked_to_drain_finishes_and_returns(client: Client, queue: str) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    worker = Worker(SERVER, queues=[queue], grace=0, name=queue)

    @worker.handler("long")
    async def long(payload: Any, context: Context) -> str | None:
        started.set()
        await go.wait()
        return context.traceparent

    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    job_id = (await client.enqueue("long", queue=queue, metadata={"traceparent": trace})).id
    run = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), TIMEOUT)
    workers = (await asyncio.to_thread(_call, "GET", "workers?limit=1000"))["workers"]
    (own,) = [line for line in workers if line["name"] == queue]
    await asyncio.to_thread(_call, "POST", f"workers/{own['id']}/drain")
    asyncio.get_running_loop().call_later(1, go.set)
    await asyncio.wait_for(run, TIMEOUT)

    job = await finished(client, job_id)
    assert (job.state, job.result) == ("done", trace)


async def each_of_many_jobs_runs(client: Client, queue: str) -> None:
    ran: list[int] = []
    worker = Worker(SERVER, queues=[queue], slots=200)

    @worker.handler("count", history="failures_only")
    async def count(payload: int, context: Context) -> None:
        ran.append(payload)
        if len(ran) == 5000:
            worker.stop()

    await client.enqueue_many(NewJob(kind="count", payload=n, queue=queue) for n in range(5000))
    await asyncio.wait_for(worker.run(), TIMEOUT)

    assert sorted(ran) == list(range(5000))


async def an_invalid_queue_name_is_raised_by_run() -> None:
    worker = Worker(SERVER, queues=["no name"])

    @worker.handler("greet")
    async def greet(payload: Any, context: Context) -> None:
        pass

    with pytest.raises(grpc.aio.AioRpcError, match="no name") as refused:
        await asyncio.wait_for(worker.run(), TIMEOUT)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def effects(queue: str) -> Iterator[str]:
    """A table for the effects of handlers."""
    table = f'"{queue}-effects"'
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(f"create table {table} (effect text)")
        yield table
        connection.execute(f"drop table {table}")


def _committed(effects: str) -> list[str]:
    with psycopg.connect(URL) as connection:
        return [row[0] for row in connection.execute(f"select effect from {effects} order by effect")]


async def a_handler_completes_its_job_in_its_own_transaction(
    client: Client, queue: str, effects: str, caplog: pytest.LogCaptureFixture
) -> None:
    receipts: list[str] = []
    # One slot: the next job starts only after the server has freed it.
    worker = Worker(SERVER, queues=[queue], slots=1)

    @worker.handler("charge")
    async def charge(payload: str, context: Context) -> None:
        context.then(NewJob(kind="receipt", payload=payload, queue=queue))
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            assert await pitwheel.complete_async(connection, context, {"charged": payload})
            await connection.execute(f"insert into {effects} values (%s)", [payload])

    @worker.handler("receipt", history="failures_only")
    async def receipt(payload: str, context: Context) -> None:
        def complete() -> None:
            with psycopg.connect(URL) as connection:
                assert pitwheel.complete(connection, context)
                connection.execute(f"insert into {effects} values (%s)", [f"receipt of {payload}"])

        await asyncio.to_thread(complete)
        receipts.append(payload)
        if len(receipts) == 2:
            worker.stop()

    ids = [(await client.enqueue("charge", name, queue=queue)).id for name in ("Ada", "Eve")]
    await asyncio.wait_for(worker.run(), TIMEOUT)

    jobs = [await finished(client, job_id) for job_id in ids]
    assert [(job.state, job.attempt, job.result, job.errors) for job in jobs] == [
        ("done", 1, {"charged": "Ada"}, []),
        ("done", 1, {"charged": "Eve"}, []),
    ]
    assert _committed(effects) == ["Ada", "Eve", "receipt of Ada", "receipt of Eve"]
    assert await asyncio.to_thread(count, queue) == 2, "the followers are done, and leave no history"
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def a_handler_whose_transaction_is_rolled_back_has_failed(
    client: Client, queue: str, effects: str
) -> None:
    worker = Worker(SERVER, queues=[queue], slots=1)

    @worker.handler("charge")
    async def charge(payload: Any, context: Context) -> str:
        context.then(NewJob(kind="receipt", queue=queue))
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            assert await pitwheel.complete_async(connection, context, "charged")
            await connection.execute(f"insert into {effects} values (%s)", ["charged"])
            await connection.rollback()
        return "returned"

    async with running(worker):
        job = await finished(client, (await client.enqueue("charge", queue=queue, max_attempts=2)).id)

    assert (job.state, job.attempt, job.result) == ("dead", 2, None)
    message = "the transaction in which the handler completed the job was not committed"
    assert [(error["attempt"], error["cause"], error["message"]) for error in job.errors] == [
        (1, "error", message),
        (2, "error", message),
    ]
    assert _committed(effects) == []
    assert await asyncio.to_thread(count, queue) == 1, "no follower"


async def a_handler_that_lost_its_claim_completes_nothing(client: Client, queue: str) -> None:
    written: list[bool] = []
    worker = Worker(SERVER, queues=[queue], slots=1)

    @worker.handler("charge")
    async def charge(payload: Any, context: Context) -> str | None:
        if written:
            return "by the second claim"
        context.then(NewJob(kind="receipt", queue=queue))
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            # Settles the claim in place of the server: the attempt is over, and the job waits for the next one.
            await connection.execute(
                "select pitwheel.fail(%s, %s, 'taken away', interval '0')", [context.id, context.fence]
            )
            await connection.commit()
            written.append(await pitwheel.complete_async(connection, context, "by the first claim"))
            await connection.rollback()
        return None

    async with running(worker):
        job = await finished(client, (await client.enqueue("charge", queue=queue)).id)

    assert (written, job.state, job.result, len(job.errors)) == ([False], "done", "by the second claim", 1)
    assert await asyncio.to_thread(count, queue) == 1
