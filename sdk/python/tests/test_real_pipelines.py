"""Pipelines against a real server.

Needs `pitwheel serve` at PITWHEEL_SERVER (host:port), on the database of PITWHEEL_DATABASE_URL.
"""

from typing import Any

import grpc.aio
import pytest
from conftest import running
from real_server import SERVER, needs_server, until

from pitwheel import Bury, Client, Complete, Context, NewJob, NewStep, Pipeline, Worker

pytestmark = needs_server


async def _ended(client: Client, pipeline_id: int) -> Pipeline:
    async def look() -> Pipeline | None:
        pipeline = await client.pipelines.get(pipeline_id)
        assert pipeline is not None
        return pipeline if pipeline.state != "running" else None

    return await until(look)


def _step(name: str, queue: str, *after: str) -> NewStep:
    return NewStep(name=name, job=NewJob(kind="add", payload=name, queue=queue), after=after)


async def steps_see_the_results_of_those_before_them(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("add")
    async def add(payload: Any, context: Context) -> Complete:
        assert context.step is not None and context.step.name == payload
        total = 1 + sum(parent.result for parent in context.step.parents.values())
        complete = Complete(total)
        if payload == "d":
            complete.then_step("e", NewJob(kind="add", payload="e", queue=queue))
        return complete

    steps = [_step("a", queue), _step("b", queue, "a"), _step("c", queue, "a"), _step("d", queue, "b", "c")]
    async with running(worker):
        pipeline_id = await client.pipelines.create("sums", steps)
        pipeline = await _ended(client, pipeline_id)

    assert pipeline.state == "done"
    results = {step.name: step.result for step in pipeline.steps}
    assert results == {"a": 1, "b": 2, "c": 2, "d": 5, "e": 6}
    assert await client.pipelines.cancel(pipeline_id) is False
    assert await client.pipelines.get(2**60) is None


async def results_beyond_one_mebibyte_are_left_out(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])

    @worker.handler("add")
    async def add(payload: Any, context: Context) -> Complete:
        return Complete("x" * 250_000)

    async with running(worker):
        pipeline_id = await client.pipelines.create("wide", [_step(name, queue) for name in "abcde"])
        pipeline = await _ended(client, pipeline_id)

    assert [step.result_left_out for step in pipeline.steps] == [False, False, False, False, True]
    last = pipeline.steps[-1]
    assert last.result is None and last.job_id is not None
    job = await client.get(last.job_id)
    assert job is not None and len(job.result) == 250_000


async def a_failed_step_is_retried_with_what_comes_after_it(client: Client, queue: str) -> None:
    worker = Worker(SERVER, queues=[queue])
    fails = True

    @worker.handler("add")
    async def add(payload: Any, context: Context) -> None:
        if payload == "a" and fails:
            raise Bury("not yet")

    async with running(worker):
        pipeline_id = await client.pipelines.create("two", [_step("a", queue), _step("b", queue, "a")])
        failed = await _ended(client, pipeline_id)
        assert [step.state for step in failed.steps] == ["dead", "skipped"]
        fails = False
        assert await client.pipelines.retry(pipeline_id)
        done = await _ended(client, pipeline_id)
    assert [step.state for step in done.steps] == ["done", "done"]

    with pytest.raises(grpc.aio.AioRpcError, match="which was not added before it"):
        await client.pipelines.create("wrong", [_step("a", queue, "b"), _step("b", queue)])
