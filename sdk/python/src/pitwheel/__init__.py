"""Run and enqueue Pitwheel jobs.

A job that was enqueued is not lost, runs at least once, and is settled once: a worker that lost its claim cannot
write over the one that has it now.
"""

from .client import Client, Enqueued, Job, NewJob
from .context import Context
from .transaction import enqueue, enqueue_async
from .verdict import Bury, Retry, Snooze
from .worker import Worker

__all__ = [
    "Bury",
    "Client",
    "Context",
    "Enqueued",
    "Job",
    "NewJob",
    "Retry",
    "Snooze",
    "Worker",
    "enqueue",
    "enqueue_async",
]
