"""Enqueues jobs in the caller's transaction: the job exists if and only if the transaction commits."""

from datetime import datetime
from typing import Any

from .connection import fetch_value, fetch_value_async, find_library
from .json_text import to_json
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
    metadata     => cast(%(metadata)s as json)
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
) -> int:
    """Enqueues a job in the current transaction of `connection`. Returns the id of the job.

    `connection` is a psycopg connection or cursor, or a SQLAlchemy Connection or Session. Workers see the job after the
    transaction commits. If a live job with the same kind and key exists, its id is returned and nothing is added.
    """
    values = _values(kind, payload, queue, run_at, priority, max_attempts, timeout, key, metadata)
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
) -> int:
    """Like `enqueue`, with a psycopg AsyncConnection or AsyncCursor, or a SQLAlchemy AsyncConnection or AsyncSession."""
    values = _values(kind, payload, queue, run_at, priority, max_attempts, timeout, key, metadata)
    library = find_library(connection, "enqueue", is_async=True)
    return int(await fetch_value_async(library, connection, _ENQUEUE, values))


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
) -> dict[str, Any]:
    return {
        "kind": kind,
        "payload": to_json({} if payload is None else payload),
        "queue": queue,
        "run_at": None if run_at is None else with_zone(run_at),
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout": None if timeout is None else to_timedelta(timeout),
        "key": key,
        "metadata": None if metadata is None else to_json(metadata),
    }
