"""The server of the tests that need one: PITWHEEL_SERVER (host:port), on the database of PITWHEEL_DATABASE_URL."""

import asyncio
import os
from collections.abc import Callable

import psycopg
import pytest
from database import URL

from pitwheel import Client, Job

SERVER = os.environ.get("PITWHEEL_SERVER", "")
# In seconds. Reached only if something hangs.
TIMEOUT = 30.0
needs_server = pytest.mark.skipif(
    not (SERVER and URL), reason="needs PITWHEEL_SERVER and PITWHEEL_DATABASE_URL"
)


async def job_once(client: Client, job_id: int, holds: Callable[[Job], bool]) -> Job:
    async def look() -> Job:
        while True:
            job = await client.get(job_id)
            if job is not None and holds(job):
                return job
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(look(), TIMEOUT)


async def finished(client: Client, job_id: int) -> Job:
    return await job_once(client, job_id, lambda job: job.finished_at is not None)


def count(queue: str) -> int:
    """How many jobs of the queue exist, live or finished."""
    query = """
        select (select count(*) from pitwheel.job where queue = %(queue)s)
            + (select count(*) from pitwheel.job_history where queue = %(queue)s)
    """
    with psycopg.connect(URL) as connection:
        row = connection.execute(query, {"queue": queue}).fetchone()
    assert row is not None
    return int(row[0])
