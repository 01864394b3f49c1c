"""A job enqueued in the caller's transaction exists if and only if the transaction commits.

Needs a migrated database: PITWHEEL_DATABASE_URL.
"""

from datetime import datetime, timedelta

import psycopg
import pytest
import sqlalchemy
from database import NOON, QUEUE, live_job, needs_database, sqlalchemy_url
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import pitwheel


@needs_database
def a_committed_psycopg_transaction_has_itslive_job(connection: psycopg.Connection) -> None:
    job_id = pitwheel.enqueue(
        connection,
        "greet",
        {"name": "Ada"},
        queue=QUEUE,
        run_at=NOON,
        priority=3,
        max_attempts=5,
        timeout=1.5,
        metadata={"tenant": 7},
    )
    assert live_job(job_id) is None, "not visible before the commit"
    connection.commit()

    job = live_job(job_id)
    assert job is not None
    fields = (
        "kind",
        "payload",
        "queue",
        "run_at",
        "priority",
        "max_attempts",
        "timeout_ms",
        "key",
        "metadata",
    )
    assert [job[field] for field in fields] == [
        "greet",
        {"name": "Ada"},
        QUEUE,
        NOON,
        3,
        5,
        1500,
        None,
        {"tenant": 7},
    ]


@needs_database
def a_psycopg_transaction_that_is_rolled_back_has_none(connection: psycopg.Connection) -> None:
    job_id = pitwheel.enqueue(connection, "greet", queue=QUEUE)
    connection.rollback()

    assert live_job(job_id) is None


@needs_database
def a_psycopg_cursor_keeps_its_rows_and_its_row_factory(connection: psycopg.Connection) -> None:
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("select 7 as seven")
        job_id = pitwheel.enqueue(cursor, "greet", queue=QUEUE, run_at=NOON)
        assert cursor.fetchone() == {"seven": 7}
    connection.commit()

    assert live_job(job_id) is not None


@needs_database
def a_key_gives_back_the_livelive_job(connection: psycopg.Connection) -> None:
    first = pitwheel.enqueue(connection, "greet", {"n": 1}, queue=QUEUE, key="transaction")
    second = pitwheel.enqueue(connection, "greet", {"n": 2}, queue=QUEUE, key="transaction")

    assert first == second


@needs_database
def a_sqlalchemy_connection_commits_or_rolls_back_itslive_job(engine: sqlalchemy.Engine) -> None:
    with engine.begin() as connection:
        kept = pitwheel.enqueue(
            connection,
            "greet",
            {"at": "12:30"},
            queue=QUEUE,
            run_at=NOON,
            timeout=timedelta(seconds=2),
            key=None,
        )
    with engine.connect() as connection:
        dropped = pitwheel.enqueue(connection, "greet", queue=QUEUE)
        connection.rollback()

    job = live_job(kept)
    assert job is not None
    assert (job["payload"], job["timeout_ms"], job["run_at"]) == ({"at": "12:30"}, 2000, NOON)
    assert live_job(dropped) is None


@needs_database
def a_sqlalchemy_session_commits_or_rolls_back_itslive_job(engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        kept = pitwheel.enqueue(session, "greet", queue=QUEUE, run_at=NOON)
        session.commit()
        dropped = pitwheel.enqueue(session, "greet", queue=QUEUE)
        session.rollback()

    assert live_job(kept) is not None
    assert live_job(dropped) is None


@needs_database
async def an_async_psycopg_connection_commits_or_rolls_back_itslive_job(
    async_connection: psycopg.AsyncConnection,
) -> None:
    kept = await pitwheel.enqueue_async(async_connection, "greet", queue=QUEUE, run_at=NOON)
    await async_connection.commit()
    dropped = await pitwheel.enqueue_async(async_connection.cursor(), "greet", queue=QUEUE)
    await async_connection.rollback()

    assert live_job(kept) is not None
    assert live_job(dropped) is None


@needs_database
async def an_async_sqlalchemy_session_commits_or_rolls_back_itslive_job() -> None:
    engine = create_async_engine(sqlalchemy_url())
    async with AsyncSession(engine) as session:
        kept = await pitwheel.enqueue_async(session, "greet", queue=QUEUE, run_at=NOON)
        await session.commit()
        dropped = await pitwheel.enqueue_async(session, "greet", queue=QUEUE)
        await session.rollback()
    async with engine.begin() as connection:
        also_kept = await pitwheel.enqueue_async(connection, "greet", queue=QUEUE, run_at=NOON)
    await engine.dispose()

    assert live_job(kept) is not None
    assert live_job(dropped) is None
    assert live_job(also_kept) is not None


@needs_database
async def an_async_connection_needs_the_async_function(async_connection: psycopg.AsyncConnection) -> None:
    with pytest.raises(TypeError, match=r"needs `pitwheel\.enqueue_async`"):
        pitwheel.enqueue(async_connection, "greet")


def an_object_that_is_not_a_connection_is_refused() -> None:
    with pytest.raises(TypeError, match="psycopg"):
        pitwheel.enqueue(object(), "greet")


def a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        pitwheel.enqueue(object(), "greet", run_at=datetime(2030, 1, 1))
