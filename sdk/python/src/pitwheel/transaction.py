"""Enqueues jobs in the caller's transaction: the job exists if and only if the transaction commits."""

import re
from datetime import datetime
from typing import Any

from .json_text import to_json
from .span import Span, to_timedelta, with_zone

_PSYCOPG = """
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
_SQLALCHEMY = re.sub(r"%\((\w+)\)s", r":\1", _PSYCOPG)


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
    library = _library(connection, is_async=False)
    if library == "sqlalchemy":
        from sqlalchemy import text

        return int(connection.execute(text(_SQLALCHEMY), values).scalar_one())
    from psycopg.rows import tuple_row

    # A separate cursor, because the caller's may have a row factory, or rows that are not read yet.
    with _psycopg_connection(connection).cursor(row_factory=tuple_row) as cursor:
        cursor.execute(_PSYCOPG, values)
        return int(cursor.fetchone()[0])


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
    library = _library(connection, is_async=True)
    if library == "sqlalchemy":
        from sqlalchemy import text

        return int((await connection.execute(text(_SQLALCHEMY), values)).scalar_one())
    from psycopg.rows import tuple_row

    async with _psycopg_connection(connection).cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_PSYCOPG, values)
        return int((await cursor.fetchone())[0])


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


def _library(connection: Any, is_async: bool) -> str:
    """The library that the connection belongs to, found by class name: neither library has to be installed."""
    for ancestor in type(connection).__mro__:
        library = ancestor.__module__.partition(".")[0]
        if library not in ("psycopg", "sqlalchemy"):
            continue
        if ancestor.__name__.lower().startswith("async") != is_async:
            name = "enqueue" if is_async else "enqueue_async"
            raise TypeError(f"`{ancestor.__name__}` needs `pitwheel.{name}`")
        return library
    raise TypeError(
        f"`{type(connection).__name__}` is not a supported connection: "
        "give a connection of psycopg (version 3) or SQLAlchemy"
    )


def _psycopg_connection(connection_or_cursor: Any) -> Any:
    return getattr(connection_or_cursor, "connection", connection_or_cursor)
