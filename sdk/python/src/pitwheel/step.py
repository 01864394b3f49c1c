"""The step of a pipeline, as its handler sees it."""

from dataclasses import dataclass
from typing import Any, Literal, cast

from ._proto import pitwheel_pb2 as pb
from .json_text import from_json

#: The state of a step. A live step is a job that waits or runs.
StepState = Literal["waiting", "live", "done", "dead", "cancelled", "skipped"]


@dataclass(frozen=True, kw_only=True)
class ParentStep:
    """A step that another one comes after."""

    name: str
    state: StepState
    #: `None`: it has no result, or it was left out.
    result: Any
    #: True: the result was left out, because the results of the parents have more than 1 MiB. Read it with `Client.get`.
    result_left_out: bool


@dataclass(frozen=True, kw_only=True)
class CurrentStep:
    """The step of a pipeline that a job is, as it was when the job was claimed."""

    pipeline_id: int
    name: str
    #: The steps that it comes after, by name.
    parents: dict[str, ParentStep]


def step_from_proto(message: pb.CurrentStep) -> CurrentStep:
    return CurrentStep(
        pipeline_id=message.pipeline_id,
        name=message.name,
        parents={parent.name: _parent(parent) for parent in message.parents},
    )


def _parent(parent: pb.ParentStep) -> ParentStep:
    return ParentStep(
        name=parent.name,
        state=cast(StepState, parent.state),
        result=from_json(parent.result, f"the result of step `{parent.name}`")
        if parent.HasField("result")
        else None,
        result_left_out=parent.result_left_out,
    )
