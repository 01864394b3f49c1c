"""Run and enqueue Pitwheel jobs.

An enqueued job is not lost. It runs at least once and is settled once: a worker that lost its claim cannot overwrite
the result of the worker that has the job now.
"""

from .client import Client, Enqueued, Job
from .context import Context
from .new_job import Lane, NewJob
from .pipelines import NewStep, Pipeline, Pipelines, Step
from .recurrence import Recurrence
from .recurring import RecurringJob, RecurringJobs
from .step import CurrentStep, ParentStep
from .transaction import complete, complete_async, enqueue, enqueue_async
from .verdict import Bury, Complete, Retry, Snooze
from .worker import ClaimRefusal, Worker

__all__ = [
    "Bury",
    "ClaimRefusal",
    "Client",
    "Complete",
    "Context",
    "CurrentStep",
    "Enqueued",
    "Job",
    "Lane",
    "NewJob",
    "NewStep",
    "ParentStep",
    "Pipeline",
    "Pipelines",
    "Recurrence",
    "RecurringJob",
    "RecurringJobs",
    "Retry",
    "Snooze",
    "Step",
    "Worker",
    "complete",
    "complete_async",
    "enqueue",
    "enqueue_async",
]
