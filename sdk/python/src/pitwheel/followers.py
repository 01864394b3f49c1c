"""Followers: the jobs to enqueue when the current job completes."""

from collections.abc import Iterable, Sequence

from ._proto import pitwheel_pb2 as pb
from .json_text import to_json
from .new_job import NewJob, to_proto
from .span import check_span, from_duration

# The server refuses more: all followers of a job are written by the statement that completes it.
FOLLOWERS_MAX = 100
# The server refuses requests above 4 MiB. The rest is for the result of the job.
FOLLOWERS_BYTES_MAX = 3 * 1024 * 1024


def add_followers(followers: list[pb.NewJob], jobs: Iterable[NewJob]) -> None:
    """Adds `jobs` to `followers`. Raises and adds none if one of them is invalid, or if there would be too many."""
    added = [to_proto(job) for job in jobs]
    _check_count(len(followers) + len(added))
    followers.extend(added)


def add_step(followers: list[pb.NewJob], name: str, job: NewJob) -> None:
    """Adds `job` to `followers` as a step of the pipeline.

    Raises and adds nothing if it is invalid, or there would be too many.
    """
    step = to_proto(job)
    if step.HasField("key"):
        raise ValueError(f"step `{name}` has a key: its name in the pipeline identifies it")
    step.step = name
    _check_count(len(followers) + 1)
    followers.append(step)


def check_followers(followers: Sequence[pb.NewJob]) -> None:
    """Raises `ValueError` for followers that the server would refuse because of their number or size."""
    _check_count(len(followers))
    size = sum(job.ByteSize() for job in followers)
    if size > FOLLOWERS_BYTES_MAX:
        raise ValueError(
            f"the followers have {size} bytes, the limit is {FOLLOWERS_BYTES_MAX}: "
            "store large payloads elsewhere and enqueue references"
        )


def followers_to_json(followers: Iterable[pb.NewJob]) -> str:
    """A JSON array of the followers.

    Their fields are the parameters of the SQL function `pitwheel.enqueue`, `delay` and `step`.
    Raises `ValueError` for a delay that the server would refuse: in SQL, a negative one would mean now.
    """
    return f"[{','.join(map(_to_json, followers))}]"


def _to_json(job: pb.NewJob) -> str:
    # Each value is JSON text. Payload and metadata are not parsed: parsing them would drop duplicate keys.
    fields = {
        "kind": to_json(job.kind),
        "payload": job.payload,
        "queue": to_json(job.queue),
        "priority": to_json(job.priority),
        "max_attempts": to_json(job.max_attempts),
    }
    if job.HasField("run_at"):
        fields["run_at"] = to_json(job.run_at.ToJsonString())
    if job.HasField("delay"):
        check_span(from_duration(job.delay))
        fields["delay"] = to_json(job.delay.ToJsonString())
    if job.HasField("timeout"):
        fields["timeout"] = to_json(job.timeout.ToJsonString())
    if job.HasField("key"):
        fields["key"] = to_json(job.key)
    if job.HasField("metadata"):
        fields["metadata"] = job.metadata
    if job.HasField("lane"):
        fields["lane"] = job.lane
        fields["lane_pass"] = to_json(job.lane_pass)
    if job.HasField("step"):
        fields["step"] = to_json(job.step)
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _check_count(count: int) -> None:
    if count > FOLLOWERS_MAX:
        raise ValueError(
            f"{count} followers, the limit is {FOLLOWERS_MAX}: add one job whose handler enqueues the others"
        )
