"""Enqueues and completes jobs in the caller's transaction: what it writes exists if and only if it commits."""

from datetime import datetime
from typing import Any

from .connection import fetch_value, fetch_value_async, find_library
from .context import Context
from .followers import check_followers, followers_to_json
from .json_text import to_json
from .new_job import Lane
from .result import result_to_json
from .span import Span, to_timedelta, with_zone

_ENQUEUE = """
select pitwheel.enqueue(
    kind         => cast(%(kind)s as text),
    payload      => cast(%(payload)s as json),
    queue        => cast(%(queue)s as text),
    run_at       => cast(%(run_at)s as timestamptz),
    priority     => cast(%(priority)s as integer),
    max_attempts => cast(%(max_attempts)s as integer),
    timeout      => cast(%(timeout)s as interval),
    key          => cast(%(key)s as text),
    metadata     => cast(%(metadata)s as json),
    lane         => cast(%(lane)s as json),
    lane_pass    => cast(%(lane_pass)s as boolean)
)
"""
# The database's clock turns a delay into a time. `timeout` stays text: `pitwheel.complete` reads it as an interval.
_COMPLETE = """
select pitwheel.complete(
    job_id       => cast(%(job_id)s as bigint),
    fence        => cast(%(fence)s as bigint),
    result       => cast(%(result)s as json),
    followers    => (
        select coalesce(json_agg(row_to_json(follower)), '[]')
        from (
            select job.kind, job.payload, job.queue, coalesce(job.run_at, clock_timestamp() + job.delay) as run_at,
                job.priority, job.max_attempts, job.timeout, job.key, job.metadata, job.lane, job.lane_pass,
                job.step
            from json_to_recordset(cast(%(followers)s as json)) as job(
                kind text, payload json, queue text, run_at timestamptz, delay interval, priority integer,
                max_attempts integer, timeout text, key text, metadata json, lane json, lane_pass boolean,
                step text
            )
        ) as follower
    ),
    keep_history => cast(%(keep_history)s as boolean),
    holder       => cast(%(holder)s as bigint)
)
"""


def enqueue(
    connection: Any,
    kind: str,
    payload: Any = None,
    *,
    queue: str = "default",
    run_at: datetime | None = None,
    priority: int = 0,
    max_attempts: int = 20,
    timeout: Span | None = None,
    key: str | None = None,
    metadata: Any = None,
    lane: Lane | None = None,
    lane_pass: bool = False,
) -> int:
    """Enqueues a job in the current transaction of `connection`. Returns the id of the job.

    `connection` is a psycopg connection or cursor, or a SQLAlchemy Connection or Session. Workers see the job after the
    transaction commits. If a live job with the same kind and key exists, its id is returned and nothing is added.
    """
    values = _values(
        kind, payload, queue, run_at, priority, max_attempts, timeout, key, metadata, lane, lane_pass
    )
    library = find_library(connection, "enqueue", is_async=False)
    return int(fetch_value(library, connection, _ENQUEUE, values))


async def enqueue_async(
    connection: Any,
    kind: str,
    payload: Any = None,
    *,
    queue: str = "default",
    run_at: datetime | None = None,
    priority: int = 0,
    max_attempts: int = 20,
    timeout: Span | None = None,
    key: str | None = None,
    metadata: Any = None,
    lane: Lane | None = None,
    lane_pass: bool = False,
) -> int:
    """Like `enqueue`, with a psycopg AsyncConnection or AsyncCursor, or a SQLAlchemy AsyncConnection or AsyncSession."""
    values = _values(
        kind, payload, queue, run_at, priority, max_attempts, timeout, key, metadata, lane, lane_pass
    )
    library = find_library(connection, "enqueue", is_async=True)
    return int(await fetch_value_async(library, connection, _ENQUEUE, values))


def complete(connection: Any, context: Context, result: Any = None) -> bool:
    """Completes the handler's job in the current transaction of `connection`, with the followers of `Context.then`.

    Returns True if the completion is written. It exists, with the followers and everything else in the transaction, if and
    only if the transaction commits. Returns False if the claim is lost: the job is settled, or another worker has it. Then
    roll back, because the effects of this attempt must not exist.

    `connection` is a psycopg connection or cursor, or a SQLAlchemy Connection or Session, to the database of the server.
    `result` is any JSON value; `None`: no result. If it is not JSON or too large, raises `ValueError` and sends nothing.

    End the transaction before the handler returns: until then the job is locked, and the worker's report waits. What the
    handler returns is ignored. If the transaction was not committed, the attempt counts as failed.
    """
    library = find_library(connection, "complete", is_async=False)
    return bool(fetch_value(library, connection, _COMPLETE, _completion(context, result)))


async def complete_async(connection: Any, context: Context, result: Any = None) -> bool:
    """Like `complete`, with a psycopg AsyncConnection or AsyncCursor, or a SQLAlchemy AsyncConnection or AsyncSession."""
    library = find_library(connection, "complete", is_async=True)
    return bool(await fetch_value_async(library, connection, _COMPLETE, _completion(context, result)))


def _completion(context: Context, result: Any) -> dict[str, Any]:
    """The values of the statement. When this returns, the context is marked: the statement may be written from now on."""
    check_followers(context._followers)
    values = {
        "job_id": context.id,
        "fence": context.fence,
        "result": None if result is None else result_to_json(result),
        "followers": followers_to_json(context._followers),
        "keep_history": context._keeps_history,
        "holder": context._worker_id or None,
    }
    context._complete_by_handler()
    return values


def _values(
    kind: str,
    payload: Any,
    queue: str,
    run_at: datetime | None,
    priority: int,
    max_attempts: int,
    timeout: Span | None,
    key: str | None,
    metadata: Any,
    lane: Lane | None,
    lane_pass: bool,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "payload": to_json({} if payload is None else payload),
        "queue": queue,
        "run_at": None if run_at is None else with_zone(run_at, "run_at"),
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout": None if timeout is None else to_timedelta(timeout),
        "key": key,
        "metadata": None if metadata is None else to_json(metadata),
        "lane": None if lane is None else to_json(lane),
        "lane_pass": lane_pass,
    }
