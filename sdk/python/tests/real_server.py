"""The server of the tests that need one: PITWHEEL_SERVER (host:port), on the database of PITWHEEL_DATABASE_URL."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import pytest
from database import URL

from pitwheel import Client, Job

SERVER = os.environ.get("PITWHEEL_SERVER", "")
# In seconds. Reached only if something hangs.
TIMEOUT = 30.0
Found = TypeVar("Found")
needs_server = pytest.mark.skipif(
    not (SERVER and URL), reason="needs PITWHEEL_SERVER and PITWHEEL_DATABASE_URL"
)


async def until(look: Callable[[], Awaitable[Found | None]]) -> Found:
    """Calls `look` until it returns a value."""

    async def found() -> Found:
        while True:
            if (value := await look()) is not None:
                return value
            # The server sends a client no event to wait for: it is asked 20 times a second.
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(found(), TIMEOUT)


async def job_once(client: Client, job_id: int, holds: Callable[[Job], bool]) -> Job:
    async def look() -> Job | None:
        job = await client.get(job_id)
        return job if job is not None and holds(job) else None

    return await until(look)


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
