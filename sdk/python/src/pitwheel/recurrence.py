"""The recurring job of a run, as its handler sees it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ._proto import pitwheel_pb2 as pb
from .span import from_timestamp


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """The recurring job of a run, as it was when the run was claimed."""

    recurring_id: int
    key: str
    #: As `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` or `adaptive 15m..24h`.
    cadence: str
    #: The time for which the run was planned, without jitter.
    planned_at: datetime
    #: How many attempts in a row have failed before this one.
    consecutive_failures: int
    #: The current interval of an adaptive cadence. `None`: it has another cadence.
    interval: timedelta | None


def recurrence_from_proto(message: pb.Recurrence) -> Recurrence:
    return Recurrence(
        recurring_id=message.recurring_id,
        key=message.key,
        cadence=message.cadence,
        planned_at=from_timestamp(message.planned_at),
        consecutive_failures=message.consecutive_failures,
        interval=message.interval.ToTimedelta() if message.HasField("interval") else None,
    )
