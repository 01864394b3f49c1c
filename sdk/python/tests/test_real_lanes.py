"""Lanes against a real server: jobs of one lane run one at a time, in the order of their enqueue."""

import asyncio
from typing import Any

import psycopg
import pytest
from conftest import running
from database import URL
from real_server import SERVER, TIMEOUT, finished, needs_server

import pitwheel
from pitwheel import Client, Context, Lane, NewJob, Worker

pytestmark = needs_server


async def jobs_of_one_lane_run_one_at_a_time_and_in_order(client: Client, queue: str) -> None:
    lane: Lane = ["tenant", 7, None, queue]
    ran: list[int] = []
    all_ran = asyncio.Event()
    beside: list[int] = []
    worker = Worker(SERVER, queues=[queue], slots=10)

    @worker.handler("import")
    async def run(payload: Any, context: Context) -> None:
        beside.append(1)
        assert context.lane == lane
        # Long enough for another job of the lane to start beside this one, if the server sent two.
        await asyncio.sleep(0.01)
        if payload == 0:
            context.then(NewJob(kind="import", payload=6, queue=queue, lane=lane))
        ran.append(payload if len(beside) == 1 else -1)
        beside.pop()
        if len(ran) == 7:
            all_ran.set()

    jobs = [NewJob(kind="import", payload=n, queue=queue, lane=lane) for n in range(5)]
    enqueued = await client.enqueue_many(jobs)
    blocked = await client.get(enqueued[1].id)
    assert blocked is not None and (blocked.state, blocked.lane) == ("blocked", lane)
    with psycopg.connect(URL) as connection:
        last = pitwheel.enqueue(connection, "import", 5, queue=queue, lane=lane)
    async with running(worker):
        await finished(client, last)
        await asyncio.wait_for(all_ran.wait(), TIMEOUT)

    assert ran == list(range(7))


def _importer(ran: list[int]) -> Worker:
    worker = Worker(SERVER, name="one job")

    @worker.handler("import")
    async def run(payload: Any, context: Context) -> None:
        ran.append(payload)

    return worker


async def a_worker_runs_one_job_by_its_id(client: Client, queue: str) -> None:
    lane = ["module", None, queue]
    ran: list[int] = []
    first = await client.enqueue("import", 1, queue=queue, lane=lane, delay=3600)
    second = await client.enqueue("import", 2, queue=queue, lane=lane)
    other = await client.enqueue("export", queue=queue)

    assert await _importer(ran).run_job(second.id) == "lane_busy"
    assert await _importer(ran).run_job(other.id) == "no_handler"
    assert await _importer(ran).run_job(first.id) is None
    assert await _importer(ran).run_job(first.id) == "finished"
    assert ran == [1]
    claims = await asyncio.gather(*(_importer(ran).run_job(second.id) for _ in range(4)))
    assert claims.count(None) == 1 and set(claims) <= {None, "taken", "finished"}
    assert ran == [1, 2]
    with pytest.raises(LookupError):
        await _importer(ran).run_job(2**40)
    unserved = await client.get(other.id)
    assert unserved is not None and unserved.unserved and unserved.state == "waiting"


async def a_lane_that_is_not_a_string_or_a_list_of_plain_values_is_refused(client: Client) -> None:
    for lane in [[], [[1]], [1.5], 7]:
        with pytest.raises(Exception, match="lane"):
            await client.enqueue("import", lane=lane)  # type: ignore[arg-type]
