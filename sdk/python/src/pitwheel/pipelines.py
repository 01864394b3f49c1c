"""Pipelines: the part of the client that creates and changes them."""

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

import grpc
import grpc.aio

from ._proto import pitwheel_pb2 as pb
from .new_job import NewJob, to_proto
from .span import from_timestamp
from .step import StepState

#: What becomes of the steps after one that is dead or was cancelled: they are skipped, or they run.
OnFailure = Literal["stop", "go_on"]


@dataclass(frozen=True, kw_only=True)
class NewStep:
    """A step to create."""

    #: Unique in the pipeline.
    name: str
    #: Without `key`. A delay counts from the time at which the step could run.
    job: NewJob
    #: The steps that it comes after, at most 100. They stand before it in the list. Without any it runs at once.
    after: Iterable[str] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a pipeline, as the server read it."""

    name: str
    state: StepState
    after: list[str]
    kind: str
    queue: str
    #: Its last job. `None`: it had none yet.
    job_id: int | None
    ended_at: datetime | None
    #: `None`: no result, redacted, or left out.
    result: Any
    #: True: the result was left out, because the results up to this step have more than 1 MiB. Read it with `Client.get`.
    result_left_out: bool


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline, as the server read it."""

    id: int
    name: str
    #: `failed`: every step has ended, and some are dead, cancelled or skipped.
    state: Literal["running", "done", "failed", "cancelled"]
    on_failure: OnFailure
    created_at: datetime
    cancelled_at: datetime | None
    #: When its last step ended. `None`: it is running.
    finished_at: datetime | None
    #: In their order.
    steps: list[Step]


class Pipelines:
    """The pipelines of a server: `Client.pipelines`. A failed call raises `grpc.aio.AioRpcError`."""

    def __init__(self, call: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._call = call

    async def create(self, name: str, steps: Iterable[NewStep], *, on_failure: OnFailure = "stop") -> int:
        """Creates a pipeline of 1 to 1,000 steps, and enqueues the jobs of its first steps. Returns its id.

        After an error other than `INVALID_ARGUMENT` it may exist.
        """
        messages = [pb.NewStep(name=step.name, job=to_proto(step.job), after=step.after) for step in steps]
        request = pb.CreatePipelineRequest(name=name, on_failure=on_failure, steps=messages)
        return int((await self._call("CreatePipeline", request)).pipeline_id)

    async def get(self, pipeline_id: int) -> Pipeline | None:
        """Returns a pipeline with its steps, and up to 1 MiB of their results. `None`: there is none, or it was pruned."""
        try:
            response = await self._call("GetPipeline", pb.GetPipelineRequest(pipeline_id=pipeline_id))
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return _from_proto(response.pipeline)

    async def cancel(self, pipeline_id: int) -> bool:
        """Cancels what is left of a pipeline; workers of running jobs are asked to stop them. False: it had ended."""
        response = await self._call("CancelPipeline", pb.CancelPipelineRequest(pipeline_id=pipeline_id))
        return bool(response.changed)

    async def retry(self, pipeline_id: int) -> bool:
        """Runs the steps again that are dead, cancelled or skipped. False: there are none."""
        response = await self._call("RetryPipeline", pb.RetryPipelineRequest(pipeline_id=pipeline_id))
        return bool(response.changed)


def _time(message: Any, field: str) -> datetime | None:
    return from_timestamp(getattr(message, field)) if message.HasField(field) else None


def _from_proto(pipeline: pb.Pipeline) -> Pipeline:
    return Pipeline(
        id=pipeline.id,
        name=pipeline.name,
        state=cast(Any, pipeline.state),
        on_failure=cast(OnFailure, pipeline.on_failure),
        created_at=from_timestamp(pipeline.created_at),
        cancelled_at=_time(pipeline, "cancelled_at"),
        finished_at=_time(pipeline, "finished_at"),
        steps=[_step(step) for step in pipeline.steps],
    )


def _step(step: pb.Step) -> Step:
    return Step(
        name=step.name,
        state=cast(StepState, step.state),
        after=list(step.after),
        kind=step.kind,
        queue=step.queue,
        job_id=step.job_id if step.HasField("job_id") else None,
        ended_at=_time(step, "ended_at"),
        result=json.loads(step.result) if step.HasField("result") else None,
        result_left_out=step.result_left_out,
    )
