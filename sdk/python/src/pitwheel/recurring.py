"""Recurring jobs: the part of the client that creates and changes them."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import grpc
import grpc.aio

from ._proto import pitwheel_pb2 as pb
from .json_text import to_json
from .span import Span, from_timestamp, to_duration, to_timestamp

#: What becomes of planned times at which a recurring job could not run.
Misfire = Literal["skip", "one", "all"]
#: A recurring job: its id, or its kind and key.
Name = int | tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class RecurringJob:
    """A recurring job, as the server read it."""

    id: int
    kind: str
    #: Empty if redacted.
    key: str
    queue: str
    priority: int
    #: As `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` or `adaptive 15m..24h`.
    cadence: str
    misfire: Misfire
    enabled: bool
    #: True: a run is in progress.
    running: bool
    #: When its next run is due, or the one in progress was; kept while it is disabled. `None`: a node is yet to plan it.
    next_run_at: datetime | None
    #: Why it runs next at that time, for people. Empty: not known.
    reason: str
    #: The current interval of an adaptive cadence.
    interval: timedelta | None
    runs: int
    #: Planned times that were not run.
    skipped: int
    last_run_at: datetime | None
    last_error: str | None
    consecutive_failures: int
    timeout: timedelta | None
    #: Attempts of one run. `None`: no limit.
    max_attempts: int | None
    #: `None` if redacted.
    payload: Any
    metadata: Any
    created_at: datetime
    updated_at: datetime
    redacted: bool


class RecurringJobs:
    """The recurring jobs of a server: `Client.recurring`.

    A recurring job is named by its id, or by its kind and key. A failed call raises `grpc.aio.AioRpcError`; `NOT_FOUND`:
    there is no such recurring job.
    """

    def __init__(self, call: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._call = call

    async def create(
        self,
        kind: str,
        key: str,
        cadence: str,
        payload: Any = None,
        *,
        misfire: Misfire = "one",
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Span | None = None,
        metadata: Any = None,
        first_at: datetime | None = None,
    ) -> RecurringJob:
        """Creates a recurring job. If its kind has one with this key, that is enabled and gets this definition.

        `cadence` is `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` (UTC without a time zone) or `adaptive 15m..24h`, each
        with an optional `jitter 30s` at its end. Without `first_at`, `every` and `adaptive` begin at once, and `cron` at
        its next time. Safe to repeat: the same cadence keeps the time of the next run, unless it has passed.
        """
        job = pb.NewJob(
            kind=kind,
            key=key,
            payload=to_json({} if payload is None else payload),
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            timeout=None if timeout is None else to_duration(timeout),
            metadata=None if metadata is None else to_json(metadata),
            run_at=None if first_at is None else to_timestamp(first_at, "first_at"),
        )
        request = pb.CreateRecurringRequest(job=job, cadence=cadence, misfire=misfire)
        return _from_proto((await self._call("CreateRecurring", request)).recurring)

    async def get(self, name: Name) -> RecurringJob | None:
        """Returns a recurring job. `None`: there is no such recurring job."""
        try:
            response = await self._call("GetRecurring", pb.GetRecurringRequest(name=_name(name)))
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return _from_proto(response.recurring)

    async def enable(self, name: Name) -> RecurringJob:
        """Enables it: it runs at the time that was kept, or now if it has passed."""
        response = await self._call("EnableRecurring", pb.EnableRecurringRequest(name=_name(name)))
        return _from_proto(response.recurring)

    async def disable(self, name: Name) -> RecurringJob:
        """Disables it: no run starts after this. A run in progress finishes. The time of the next run is kept."""
        response = await self._call("DisableRecurring", pb.DisableRecurringRequest(name=_name(name)))
        return _from_proto(response.recurring)

    async def run_now(self, name: Name) -> bool:
        """Makes the next run due now. False: a run is in progress, and nothing was changed."""
        response = await self._call("RunRecurring", pb.RunRecurringRequest(name=_name(name)))
        return bool(response.is_due)

    async def change(self, name: Name, cadence: str, misfire: Misfire | None = None) -> RecurringJob:
        """Gives it another cadence; `None` keeps its misfire policy. It is planned anew, one interval from now."""
        request = pb.ChangeRecurringRequest(name=_name(name), cadence=cadence, misfire=misfire or "")
        return _from_proto((await self._call("ChangeRecurring", request)).recurring)

    async def delete(self, name: Name) -> None:
        """Deletes it. A run in progress finishes; nothing follows it."""
        await self._call("DeleteRecurring", pb.DeleteRecurringRequest(name=_name(name)))

    async def next_times(self, name: Name, count: int = 5) -> list[datetime]:
        """The next times at which it runs, at most 1,000, as if it stayed as it is; after the first without jitter."""
        response = await self._call("ListRunTimes", pb.ListRunTimesRequest(name=_name(name), count=count))
        return [from_timestamp(time) for time in response.times]


def _name(name: Name) -> pb.RecurringName:
    if isinstance(name, int):
        return pb.RecurringName(recurring_id=name)
    kind, key = name
    return pb.RecurringName(key=pb.RecurringKey(kind=kind, key=key))


def _from_proto(job: pb.Recurring) -> RecurringJob:
    def given(field: str) -> Any:
        return getattr(job, field) if job.HasField(cast(Any, field)) else None

    def time(field: str) -> datetime | None:
        stamp = given(field)
        return None if stamp is None else from_timestamp(stamp)

    def span(field: str) -> timedelta | None:
        duration = given(field)
        return None if duration is None else duration.ToTimedelta()

    metadata = given("metadata")
    return RecurringJob(
        id=job.id,
        kind=job.kind,
        key=job.key,
        queue=job.queue,
        priority=job.priority,
        cadence=job.cadence,
        misfire=cast(Misfire, job.misfire),
        enabled=job.enabled,
        running=job.running,
        next_run_at=time("next_run_at"),
        reason=job.reason,
        interval=span("interval"),
        runs=job.runs,
        skipped=job.skipped,
        last_run_at=time("last_run_at"),
        last_error=given("last_error"),
        consecutive_failures=job.consecutive_failures,
        timeout=span("timeout"),
        max_attempts=given("max_attempts"),
        payload=json.loads(job.payload) if job.payload else None,
        metadata=None if metadata is None else json.loads(metadata),
        created_at=from_timestamp(job.created_at),
        updated_at=from_timestamp(job.updated_at),
        redacted=job.redacted,
    )
