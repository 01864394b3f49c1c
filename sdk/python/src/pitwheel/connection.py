"""Executes a statement on a connection of psycopg or SQLAlchemy. Only the library of the connection must be installed."""

import re
from functools import cache
from typing import Any


def find_library(connection: Any, function: str, is_async: bool) -> str:
    """The library that the connection belongs to, found by class name: neither library has to be installed.

    `function` is the name of the caller in this package, without `_async`, for the error of a connection of the other sort.
    """
    for ancestor in type(connection).__mro__:
        library = ancestor.__module__.partition(".")[0]
        if library not in ("psycopg", "sqlalchemy"):
            continue
        if ancestor.__name__.lower().startswith("async") != is_async:
            name = function if is_async else f"{function}_async"
            raise TypeError(f"`{ancestor.__name__}` needs `pitwheel.{name}`")
        return library
    raise TypeError(
        f"`{type(connection).__name__}` is not a supported connection: "
        "give a connection of psycopg (version 3) or SQLAlchemy"
    )


def fetch_value(library: str, connection: Any, statement: str, values: dict[str, Any]) -> Any:
    """Executes the statement in the current transaction of the connection. Returns the one value of its one row.

    The statement has placeholders of psycopg, `%(name)s`, and no other `%` or `:`.
    """
    if library == "sqlalchemy":
        from sqlalchemy import text

        return connection.execute(text(_for_sqlalchemy(statement)), values).scalar_one()
    from psycopg.rows import tuple_row

    # A separate cursor, because the caller's may have a row factory, or rows that are not read yet.
    with _psycopg_connection(connection).cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone()[0]


async def fetch_value_async(library: str, connection: Any, statement: str, values: dict[str, Any]) -> Any:
    """Like `fetch_value`, for an async connection."""
    if library == "sqlalchemy":
        from sqlalchemy import text

        return (await connection.execute(text(_for_sqlalchemy(statement)), values)).scalar_one()
    from psycopg.rows import tuple_row

    async with _psycopg_connection(connection).cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, values)
        return (await cursor.fetchone())[0]


@cache
def _for_sqlalchemy(statement: str) -> str:
    return re.sub(r"%\((\w+)\)s", r":\1", statement)


def _psycopg_connection(connection_or_cursor: Any) -> Any:
    return getattr(connection_or_cursor, "connection", connection_or_cursor)
