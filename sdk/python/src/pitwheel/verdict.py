"""What a handler raises when it has more to say than done or failed."""

from datetime import timedelta

from .span import Span, to_timedelta

# What the server takes.
SPAN_MAX = timedelta(days=100 * 365)


class Verdict(Exception):
    """How the job goes on. Not an error: it is what the handler decided."""


class Snooze(Verdict):
    """Not yet: again after this long. The attempt is not counted."""

    def __init__(self, delay: Span) -> None:
        super().__init__(f"again after {delay}")
        self.delay = _checked(delay)


class Retry(Verdict):
    """Failed: again after this long rather than after the usual backoff. Buried when it was the last attempt."""

    def __init__(self, after: Span, reason: object) -> None:
        super().__init__(reason)
        self.after = _checked(after)
        self.reason = str(reason)


class Bury(Verdict):
    """Never again, whatever attempts are left."""

    def __init__(self, reason: object) -> None:
        super().__init__(reason)
        self.reason = str(reason)


def _checked(span: Span) -> timedelta:
    """Refused here, where the handler raises it: the attempt fails with these words."""
    checked = to_timedelta(span)
    if not timedelta(0) <= checked <= SPAN_MAX:
        raise ValueError(f"`{span}` is not a time span from 0 to 100 years")
    return checked
