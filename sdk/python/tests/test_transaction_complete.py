"""A job completed in the caller's transaction is done, with its followers, if and only if the transaction commits.

Needs a migrated database: PITWHEEL_DATABASE_URL.
"""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from database import NOON, QUEUE, URL, live_job, needs_database, sqlalchemy_url
from fake_server import assignment
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import pitwheel
from pitwheel import Context, NewJob


def _claimed(kind: str = "greet", keeps_history: bool = True) -> Context:
    """The context of a job that is claimed by a worker that does not exist. No sweep finds it, because it has no hold."""
    claim = "update pitwheel.job set holder = -1, fence = 7, attempt = 1, claimed_at = now() where id = %s"
    with psycopg.connect(URL) as connection:
        job_id = pitwheel.enqueue(connection, kind, queue=QUEUE)
        connection.execute(claim, [job_id])
    return Context(assignment(job_id, fence=7, kind=kind, queue=QUEUE), keeps_history)


def _is_live(context: Context) -> bool:
    return live_job(context.id) is not None


def _history(context: Context) -> dict[str, Any] | None:
    with psycopg.connect(URL, row_factory=dict_row) as connection:
        query = "select state, fence, attempt, result from pitwheel.job_history where id = %s"
        return connection.execute(query, [context.id]).fetchone()


def _followers(key: str) -> list[dict[str, Any]]:
    """The live jobs of the queue whose key starts like this, in the order of their ids."""
    query = (
        "select *, run_at - now() as due_in from pitwheel.job where queue = %s and key like %s order by id"
    )
    with psycopg.connect(URL, row_factory=dict_row) as connection:
        return connection.execute(query, [QUEUE, f"{key}-%"]).fetchall()


def _follow(context: Context, number: int = 0, **options: Any) -> None:
    options = {"kind": "next", "queue": QUEUE, "key": f"{context.id}-{number}", **options}
    context.then(NewJob(**options))


@needs_database
def a_committed_psycopg_transaction_completes_the_job(connection: psycopg.Connection) -> None:
    context = _claimed()
    _follow(
        context, 0, payload={"n": 1.50}, run_at=NOON, priority=-3, max_attempts=5, timeout=1.5, metadata=[7]
    )
    _follow(context, 1, delay=timedelta(days=1, microseconds=5))
    _follow(context, 2)
    assert pitwheel.complete(connection, context, {"greeted": "Ada \u2603"})
    assert (_is_live(context), _followers(f"{context.id}")) == (True, []), "not visible before the commit"
    connection.commit()

    assert not _is_live(context)
    assert _history(context) == {
        "state": "done",
        "fence": 7,
        "attempt": 1,
        "result": {"greeted": "Ada \u2603"},
    }
    first, second, third = _followers(f"{context.id}")
    fields = ("kind", "payload", "run_at", "priority", "max_attempts", "timeout_ms", "metadata", "holder")
    assert [first[field] for field in fields] == ["next", {"n": 1.5}, NOON, -3, 5, 1500, [7], None]
    assert [second[field] for field in ("payload", "priority", "max_attempts", "timeout_ms", "metadata")] == [
        {},
        0,
        20,
        None,
        None,
    ]
    assert timedelta(hours=23) < second["due_in"] <= timedelta(days=1)
    assert third["due_in"] <= timedelta(0)


@needs_database
def a_psycopg_transaction_that_is_rolled_back_leaves_the_job_claimed(connection: psycopg.Connection) -> None:
    context = _claimed()
    _follow(context)
    assert pitwheel.complete(connection, context)
    connection.rollback()

    assert (_is_live(context), _history(context), _followers(f"{context.id}")) == (True, None, [])
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("select 7 as seven")
        assert pitwheel.complete(cursor, context), "the claim still holds"
        assert cursor.fetchone() == {"seven": 7}
    connection.commit()
    assert (_is_live(context), len(_followers(f"{context.id}"))) == (False, 1)


@needs_database
def a_lost_claim_completes_nothing(connection: psycopg.Connection) -> None:
    context = _claimed()
    _follow(context)
    connection.execute("update pitwheel.job set fence = fence + 1 where id = %s", [context.id])
    connection.commit()
    assert pitwheel.complete(connection, context, "done") is False
    connection.commit()

    assert (_is_live(context), _history(context), _followers(f"{context.id}")) == (True, None, [])


@needs_database
def a_claim_that_a_failover_lost_completes_nothing(connection: psycopg.Connection) -> None:
    context = _claimed()
    # Another worker has the same fence. `_claimed` names -1 as the holder.
    context._worker_id = -2
    assert pitwheel.complete(connection, context) is False
    connection.commit()
    assert (_is_live(context), _history(context)) == (True, None)

    context._worker_id = -1
    assert pitwheel.complete(connection, context) is True
    connection.commit()


@needs_database
def a_second_completion_is_false(connection: psycopg.Connection) -> None:
    context = _claimed()
    _follow(context)

    assert [pitwheel.complete(connection, context) for _ in range(2)] == [True, False]
    connection.commit()
    assert len(_followers(f"{context.id}")) == 1


@needs_database
def a_handler_without_history_leaves_a_row_only_for_a_result(connection: psycopg.Connection) -> None:
    plain, with_result = _claimed(keeps_history=False), _claimed(keeps_history=False)
    assert pitwheel.complete(connection, plain)
    assert pitwheel.complete(connection, with_result, 0)
    connection.commit()

    assert (_is_live(plain), _history(plain)) == (False, None)
    assert (_history(with_result) or {})["result"] == 0


@needs_database
def a_follower_with_the_key_of_a_live_job_is_not_added(connection: psycopg.Connection) -> None:
    context = _claimed()
    live = pitwheel.enqueue(connection, "next", queue=QUEUE, key=f"{context.id}-0", run_at=NOON)
    _follow(context)
    assert pitwheel.complete(connection, context)
    connection.commit()

    assert [job["id"] for job in _followers(f"{context.id}")] == [live]


@needs_database
def an_invalid_follower_is_refused_by_the_database(connection: psycopg.Connection) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kind": "no name"}, "kind `no name` is not a name"),
        ({"priority": 10}, "priority 10 is out of range"),
        ({"timeout": -1}, "is not a time span above zero"),
        ({"payload": "x" * 300_000}, "payload has 300002 bytes"),
    ]
    for options, problem in wrong:
        context = _claimed()
        _follow(context, **options)
        with pytest.raises(psycopg.Error, match=problem):
            pitwheel.complete(connection, context)
        connection.rollback()
        assert _is_live(context)


@needs_database
def a_payload_of_a_follower_keeps_its_text(connection: psycopg.Connection) -> None:
    context = _claimed()
    _follow(context, payload={"b": [1e22, 12345678901234567890], "a": 'quo"te \\ %(x)s :y ::z', 1: 1, "1": 2})
    assert pitwheel.complete(connection, context)
    row = connection.execute(
        "select payload::text from pitwheel.job where kind = 'next' and key = %s", [f"{context.id}-0"]
    ).fetchone()

    assert row == ('{"b":[1e+22,12345678901234567890],"a":"quo\\"te \\\\ %(x)s :y ::z","1":1,"1":2}',)


@needs_database
def sqlalchemy_connections_and_sessions_complete_or_roll_back(engine: sqlalchemy.Engine) -> None:
    kept, dropped, in_session = _claimed(), _claimed(), _claimed()
    for context in (kept, dropped, in_session):
        _follow(context, 0, payload={"at": "12:30"}, delay=60)
        _follow(context, 1, run_at=NOON, timeout=2)
    with engine.begin() as connection:
        assert pitwheel.complete(connection, kept, {"at": "12:30"})
    with engine.connect() as connection:
        assert pitwheel.complete(connection, dropped)
        connection.rollback()
    with Session(engine) as session:
        assert pitwheel.complete(session, in_session)
        assert pitwheel.complete(session, in_session) is False
        session.commit()

    assert (_history(kept) or {})["result"] == {"at": "12:30"}
    first, second = _followers(f"{kept.id}")
    assert first["payload"] == {"at": "12:30"}
    assert timedelta(0) < first["due_in"] <= timedelta(seconds=60)
    assert (second["run_at"], second["timeout_ms"]) == (NOON, 2000)
    assert (_is_live(dropped), _history(dropped), _followers(f"{dropped.id}")) == (True, None, [])
    assert (_is_live(in_session), len(_followers(f"{in_session.id}"))) == (False, 2)


@needs_database
async def an_async_psycopg_connection_completes_or_rolls_back(
    async_connection: psycopg.AsyncConnection,
) -> None:
    kept, dropped = _claimed(), _claimed()
    _follow(kept, delay=60)
    _follow(dropped)
    assert await pitwheel.complete_async(async_connection, kept, "done")
    await async_connection.commit()
    assert await pitwheel.complete_async(async_connection.cursor(), dropped)
    await async_connection.rollback()
    assert await pitwheel.complete_async(async_connection, kept) is False

    assert ((_history(kept) or {})["result"], len(_followers(f"{kept.id}"))) == ("done", 1)
    assert (_is_live(dropped), _history(dropped), _followers(f"{dropped.id}")) == (True, None, [])


@needs_database
async def async_sqlalchemy_connections_and_sessions_complete_or_roll_back() -> None:
    kept, dropped, also_kept = _claimed(), _claimed(), _claimed()
    for context in (kept, dropped, also_kept):
        _follow(context, delay=60)
    engine = create_async_engine(sqlalchemy_url())
    async with AsyncSession(engine) as session:
        assert await pitwheel.complete_async(session, kept, ["done"])
        await session.commit()
        assert await pitwheel.complete_async(session, dropped)
        await session.rollback()
    async with engine.begin() as connection:
        assert await pitwheel.complete_async(connection, also_kept)
    await engine.dispose()

    assert ((_history(kept) or {})["result"], len(_followers(f"{kept.id}"))) == (["done"], 1)
    assert (_is_live(dropped), _history(dropped), _followers(f"{dropped.id}")) == (True, None, [])
    assert (_is_live(also_kept), len(_followers(f"{also_kept.id}"))) == (False, 1)


@needs_database
@pytest.mark.parametrize("style", ["postgres", "sql_standard", "iso_8601", "postgres_verbose"])
def settings_of_the_session_do_not_change_the_followers(connection: psycopg.Connection, style: str) -> None:
    context = _claimed()
    _follow(context, 0, run_at=NOON, timeout=90_061.5)
    _follow(context, 1, delay=timedelta(days=40, seconds=1))
    connection.execute("set intervalstyle = " + style)
    connection.execute("set datestyle = 'SQL, DMY'")
    connection.execute("set timezone = 'Asia/Kolkata'")
    assert pitwheel.complete(connection, context)
    connection.commit()

    first, second = _followers(f"{context.id}")
    assert (first["run_at"], first["timeout_ms"]) == (NOON, 90_061_500)
    assert timedelta(days=39, hours=23) < second["due_in"] <= timedelta(days=40, seconds=1)
