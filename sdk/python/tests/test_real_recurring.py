"""Recurring jobs against a real server.

Needs `pitwheel serve` at PITWHEEL_SERVER (host:port), on the database of PITWHEEL_DATABASE_URL.
"""

from datetime import datetime, timedelta, timezone
from typing import Any

import grpc.aio
import pytest
from conftest import running
from real_server import SERVER, needs_server, until

from pitwheel import Client, Complete, Context, Recurrence, RecurringJob, Worker

pytestmark = needs_server


async def _after_runs(client: Client, recurring_id: int, runs: int) -> RecurringJob:
    async def look() -> RecurringJob | None:
        job = await client.recurring.get(recurring_id)
        assert job is not None
        return job if job.runs >= runs else None

    return await until(look)


async def a_run_says_what_it_found_and_when_the_next_one_is(client: Client, queue: str) -> None:
    seen: list[Recurrence | None] = []
    next_at = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=3)
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("poll")
    async def poll(payload: Any, context: Context) -> Complete:
        seen.append(context.recurrence)
        return Complete(found=0) if len(seen) == 1 else Complete(next_at=next_at)

    async with running(worker):
        created = await client.recurring.create("poll", queue, "adaptive 1m..1h", {"source": 7}, queue=queue)
        first = await _after_runs(client, created.id, 1)
        assert first.interval == timedelta(seconds=90)
        assert first.reason == "it found nothing new: 1m30s instead of 1m"
        assert await client.recurring.run_now(created.id)
        second = await _after_runs(client, created.id, 2)

    assert (second.next_run_at, second.reason) == (next_at, "its handler named the time")
    assert seen[0] is not None and (seen[0].recurring_id, seen[0].key) == (created.id, queue)
    assert seen[0].cadence == "adaptive 1m..1h"
    await client.recurring.delete(created.id)


async def a_recurring_job_is_created_once_enabled_and_disabled(client: Client, queue: str) -> None:
    name = ("report", queue)
    later = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=1)
    created = await client.recurring.create("report", queue, "every 15m", queue=queue, first_at=later)
    again = await client.recurring.create("report", queue, "every 15m", {"n": 2}, queue=queue)
    assert (again.id, again.payload, again.next_run_at) == (created.id, {"n": 2}, later)

    disabled = await client.recurring.disable(name)
    assert (disabled.enabled, disabled.next_run_at) == (False, later)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.recurring.run_now(name)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (await client.recurring.enable(name)).next_run_at == later

    changed = await client.recurring.change(name, "cron 30 2 * * * Europe/Zurich", "all")
    assert (changed.cadence, changed.misfire) == ("cron 30 2 * * * Europe/Zurich", "all")
    assert len(await client.recurring.next_times(name, 3)) == 3
    with pytest.raises(grpc.aio.AioRpcError, match="cadence `hourly`"):
        await client.recurring.change(name, "hourly")

    await client.recurring.delete(name)
    assert await client.recurring.get(name) is None
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await client.recurring.delete(name)
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
