"""A job enqueued in the caller's transaction exists if and only if the transaction commits.

Needs a migrated database: PITWHEEL_DATABASE_URL.
"""

import os
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import pitwheel

URL = os.environ.get("PITWHEEL_DATABASE_URL", "")
# No worker takes jobs from this queue.
QUEUE = "sdk-python-transaction"
needs_database = pytest.mark.skipif(not URL, reason="needs PITWHEEL_DATABASE_URL")
NOON = datetime(2100, 1, 2, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(URL) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def engine() -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(_sqlalchemy_url())
    yield engine
    engine.dispose()


@pytest.fixture
async def async_connection() -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        yield connection
        await connection.rollback()


def _sqlalchemy_url() -> sqlalchemy.URL:
    return sqlalchemy.make_url(URL.replace("postgres://", "postgresql://", 1)).set(
        drivername="postgresql+psycopg"
    )


def _job(job_id: int) -> dict[str, Any] | None:
    with psycopg.connect(URL, row_factory=dict_row) as connection:
        return connection.execute("select * from pitwheel.job where id = %s", [job_id]).fetchone()


@needs_database
def a_committed_psycopg_transaction_has_its_job(connection: psycopg.Connection) -> None:
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
    assert _job(job_id) is None, "not visible before the commit"
    connection.commit()

    job = _job(job_id)
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

    assert _job(job_id) is None


@needs_database
def a_psycopg_cursor_keeps_its_rows_and_its_row_factory(connection: psycopg.Connection) -> None:
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("select 7 as seven")
        job_id = pitwheel.enqueue(cursor, "greet", queue=QUEUE, run_at=NOON)
        assert cursor.fetchone() == {"seven": 7}
    connection.commit()

    assert _job(job_id) is not None


@needs_database
def a_key_gives_back_the_live_job(connection: psycopg.Connection) -> None:
    first = pitwheel.enqueue(connection, "greet", {"n": 1}, queue=QUEUE, key="transaction")
    second = pitwheel.enqueue(connection, "greet", {"n": 2}, queue=QUEUE, key="transaction")

    assert first == second


@needs_database
def a_sqlalchemy_connection_commits_or_rolls_back_its_job(engine: sqlalchemy.Engine) -> None:
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

    job = _job(kept)
    assert job is not None
    assert (job["payload"], job["timeout_ms"], job["run_at"]) == ({"at": "12:30"}, 2000, NOON)
    assert _job(dropped) is None


@needs_database
def a_sqlalchemy_session_commits_or_rolls_back_its_job(engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        kept = pitwheel.enqueue(session, "greet", queue=QUEUE, run_at=NOON)
        session.commit()
        dropped = pitwheel.enqueue(session, "greet", queue=QUEUE)
        session.rollback()

    assert _job(kept) is not None
    assert _job(dropped) is None


@needs_database
async def an_async_psycopg_connection_commits_or_rolls_back_its_job(
    async_connection: psycopg.AsyncConnection,
) -> None:
    kept = await pitwheel.enqueue_async(async_connection, "greet", queue=QUEUE, run_at=NOON)
    await async_connection.commit()
    dropped = await pitwheel.enqueue_async(async_connection.cursor(), "greet", queue=QUEUE)
    await async_connection.rollback()

    assert _job(kept) is not None
    assert _job(dropped) is None


@needs_database
async def an_async_sqlalchemy_session_commits_or_rolls_back_its_job() -> None:
    engine = create_async_engine(_sqlalchemy_url())
    async with AsyncSession(engine) as session:
        kept = await pitwheel.enqueue_async(session, "greet", queue=QUEUE, run_at=NOON)
        await session.commit()
        dropped = await pitwheel.enqueue_async(session, "greet", queue=QUEUE)
        await session.rollback()
    async with engine.begin() as connection:
        also_kept = await pitwheel.enqueue_async(connection, "greet", queue=QUEUE, run_at=NOON)
    await engine.dispose()

    assert _job(kept) is not None
    assert _job(dropped) is None
    assert _job(also_kept) is not None


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
