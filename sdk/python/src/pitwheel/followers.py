"""Followers: the jobs to enqueue when the current job completes."""

from collections.abc import Iterable, Sequence

from ._proto import pitwheel_pb2 as pb
from .new_job import NewJob, to_proto

# The server refuses more: all followers of a job are written by the statement that completes it.
FOLLOWERS_MAX = 100
# The server refuses requests above 4 MiB. The rest is for the result of the job.
FOLLOWERS_BYTES_MAX = 3 * 1024 * 1024


def add_followers(followers: list[pb.NewJob], jobs: Iterable[NewJob]) -> None:
    """Adds `jobs` to `followers`. Raises and adds none if one of them is invalid, or if there would be too many."""
    added = [to_proto(job) for job in jobs]
    _check_count(len(followers) + len(added))
    followers.extend(added)


def check_followers(followers: Sequence[pb.NewJob]) -> None:
    """Raises `ValueError` for followers that the server would refuse because of their number or size."""
    _check_count(len(followers))
    size = sum(job.ByteSize() for job in followers)
    if size > FOLLOWERS_BYTES_MAX:
        raise ValueError(
            f"the followers have {size} bytes, the limit is {FOLLOWERS_BYTES_MAX}: "
            "store large payloads elsewhere and enqueue references"
        )


def _check_count(count: int) -> None:
    if count > FOLLOWERS_MAX:
        raise ValueError(
            f"{count} followers, the limit is {FOLLOWERS_MAX}: add one job whose handler enqueues the others"
        )
