"""The lease of a stream, as far as this process can know it."""

from time import monotonic


def now() -> float:
    """In seconds, by a clock that also goes on while the process is stopped, as by SIGSTOP."""
    return monotonic()


class Lease:
    """How long the server keeps the jobs of a stream for this worker.

    The server counts from the time at which it receives a request, and this class from when the request was sent: so the
    lease may have ended here before it has at the server, and never after that.
    """

    def __init__(self, seconds: float, asked_at: float) -> None:
        """`asked_at`: when the stream was asked for."""
        self._seconds = seconds
        self._renewed_at = asked_at

    def renew(self, sent_at: float) -> None:
        """The server has answered a heartbeat that was sent then."""
        self._renewed_at = sent_at

    def has_ended(self) -> bool:
        return now() - self._renewed_at >= self._seconds
