"""Times, and time spans: a `timedelta`, or a number of seconds."""

from datetime import datetime, timedelta, timezone
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

# The server refuses longer time spans.
SPAN_MAX = timedelta(days=100 * 365)

Span: TypeAlias = timedelta | float


def to_timedelta(span: Span) -> timedelta:
    return span if isinstance(span, timedelta) else timedelta(seconds=span)


def check_span(span: Span) -> timedelta:
    """Raises `ValueError` here, inside the handler: the traceback shows the line, and the attempt fails with this error."""
    checked = to_timedelta(span)
    if not timedelta(0) <= checked <= SPAN_MAX:
        raise ValueError(f"`{span}` is not a time span from 0 to 100 years")
    return checked


def to_seconds(span: Span) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def to_duration(span: Span) -> Duration:
    duration = Duration()
    duration.FromTimedelta(to_timedelta(span))
    return duration


def from_duration(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def from_timestamp(stamp: Timestamp) -> datetime:
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def to_timestamp(time: datetime, field: str) -> Timestamp:
    """Raises `TypeError` or `ValueError` for a time that cannot be sent. The error names `field`."""
    stamp = Timestamp()
    try:
        stamp.FromDatetime(with_zone(time, field))
    except OverflowError as error:
        raise ValueError(f"{field} `{time}` is out of range: give a time from 1970 to 2200") from error
    return stamp


def with_zone(time: datetime, field: str) -> datetime:
    """Raises `ValueError` for a time without a zone, because client and server could assume different zones."""
    if not isinstance(time, datetime):
        raise TypeError(f"{field} `{time!r:.80}` is not a datetime")
    if time.tzinfo is None:
        raise ValueError(f"{field} `{time}` has no time zone: add one, as in `datetime.now(timezone.utc)`")
    return time
