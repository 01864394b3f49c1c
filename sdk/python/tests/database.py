"""The database of the tests that need one: PITWHEEL_DATABASE_URL, with the migrations of this version."""

import os
from datetime import datetime, timezone
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row

URL = os.environ.get("PITWHEEL_DATABASE_URL", "")
# No worker takes jobs from this queue.
QUEUE = "sdk-python-transaction"
NOON = datetime(2100, 1, 2, 12, 0, tzinfo=timezone.utc)
needs_database = pytest.mark.skipif(not URL, reason="needs PITWHEEL_DATABASE_URL")


def sqlalchemy_url() -> sqlalchemy.URL:
    return sqlalchemy.make_url(URL.replace("postgres://", "postgresql://", 1)).set(
        drivername="postgresql+psycopg"
    )


def live_job(job_id: int) -> dict[str, Any] | None:
    with psycopg.connect(URL, row_factory=dict_row) as connection:
        return connection.execute("select * from pitwheel.job where id = %s", [job_id]).fetchone()
