import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from database import URL, sqlalchemy_url
from fake_server import TIMEOUT, FakeServer, fake_server
from real_server import SERVER

from pitwheel import Client, Context, Worker

HandlerFunction = Callable[[Any, Context], Awaitable[Any]]
RunWorker = Callable[..., Awaitable[Worker]]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> list[Any] | None:
    """Collects every function of a test file, except imported ones and helpers that start with `_`."""
    is_its_own = inspect.isfunction(obj) and obj.__module__ == collector.obj.__name__
    return None if is_its_own and not name.startswith("_") else []


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(run, TIMEOUT)


@pytest.fixture
async def work(server: FakeServer) -> AsyncIterator[RunWorker]:
    """Runs a worker with this handler for the kind `greet` until the test ends."""
    async with AsyncExitStack() as stack:

        async def work(handler: HandlerFunction, **options: Any) -> Worker:
            history = options.pop("history", "all")
            worker = Worker(server.address, **{"grace": 5, **options})
            worker.handler("greet", history=history)(handler)
            return await stack.enter_async_context(running(worker))

        yield work


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(URL) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def engine() -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(sqlalchemy_url())
    yield engine
    engine.dispose()


@pytest.fixture
async def async_connection() -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        yield connection
        await connection.rollback()


@pytest.fixture
def queue() -> str:
    """A separate queue for each test, because other programs may use the database."""
    return f"sdk-python-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(SERVER) as client:
        yield client
