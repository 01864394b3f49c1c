import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClaimRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLAIM_REFUSAL_UNSPECIFIED: _ClassVar[ClaimRefusal]
    CLAIM_REFUSAL_TAKEN: _ClassVar[ClaimRefusal]
    CLAIM_REFUSAL_FINISHED: _ClassVar[ClaimRefusal]
    CLAIM_REFUSAL_OUT_OF_ATTEMPTS: _ClassVar[ClaimRefusal]
    CLAIM_REFUSAL_LANE_BUSY: _ClassVar[ClaimRefusal]
    CLAIM_REFUSAL_PAUSED: _ClassVar[ClaimRefusal]
    CLAIM_REFUSAL_NO_HANDLER: _ClassVar[ClaimRefusal]

class FailureCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CAUSE_UNSPECIFIED: _ClassVar[FailureCause]
    FAILURE_CAUSE_ERROR: _ClassVar[FailureCause]
    FAILURE_CAUSE_PANIC: _ClassVar[FailureCause]
    FAILURE_CAUSE_TIMEOUT: _ClassVar[FailureCause]
    FAILURE_CAUSE_PAYLOAD: _ClassVar[FailureCause]

class Written(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WRITTEN_UNSPECIFIED: _ClassVar[Written]
    WRITTEN_YES: _ClassVar[Written]
    WRITTEN_LOST: _ClassVar[Written]
    WRITTEN_LOCKED: _ClassVar[Written]
    WRITTEN_REFUSED: _ClassVar[Written]
    WRITTEN_ALREADY: _ClassVar[Written]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_WAITING: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_DONE: _ClassVar[JobState]
    JOB_STATE_DEAD: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
    JOB_STATE_BLOCKED: _ClassVar[JobState]
CLAIM_REFUSAL_UNSPECIFIED: ClaimRefusal
CLAIM_REFUSAL_TAKEN: ClaimRefusal
CLAIM_REFUSAL_FINISHED: ClaimRefusal
CLAIM_REFUSAL_OUT_OF_ATTEMPTS: ClaimRefusal
CLAIM_REFUSAL_LANE_BUSY: ClaimRefusal
CLAIM_REFUSAL_PAUSED: ClaimRefusal
CLAIM_REFUSAL_NO_HANDLER: ClaimRefusal
FAILURE_CAUSE_UNSPECIFIED: FailureCause
FAILURE_CAUSE_ERROR: FailureCause
FAILURE_CAUSE_PANIC: FailureCause
FAILURE_CAUSE_TIMEOUT: FailureCause
FAILURE_CAUSE_PAYLOAD: FailureCause
WRITTEN_UNSPECIFIED: Written
WRITTEN_YES: Written
WRITTEN_LOST: Written
WRITTEN_LOCKED: Written
WRITTEN_REFUSED: Written
WRITTEN_ALREADY: Written
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_WAITING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_DONE: JobState
JOB_STATE_DEAD: JobState
JOB_STATE_CANCELLED: JobState
JOB_STATE_BLOCKED: JobState

class StreamJobsRequest(_message.Message):
    __slots__ = ("worker", "queues", "kinds", "slots", "process", "job_id", "keeps_ahead")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEEPS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    worker: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    process: str
    job_id: int
    keeps_ahead: bool
    def __init__(self, worker: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., process: _Optional[str] = ..., job_id: _Optional[int] = ..., keeps_ahead: bool = ...) -> None: ...

class StreamJobsResponse(_message.Message):
    __slots__ = ("welcome", "assignments", "cancels", "claim_refused")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    assignments: Assignments
    cancels: Cancels
    claim_refused: ClaimRefused
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., assignments: _Optional[_Union[Assignments, _Mapping]] = ..., cancels: _Optional[_Union[Cancels, _Mapping]] = ..., claim_refused: _Optional[_Union[ClaimRefused, _Mapping]] = ...) -> None: ...

class ClaimRefused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: ClaimRefusal
    def __init__(self, reason: _Optional[_Union[ClaimRefusal, str]] = ...) -> None: ...

class Cancels(_message.Message):
    __slots__ = ("claims",)
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker_id", "lease", "heartbeat_every")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_EVERY_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease: _duration_pb2.Duration
    heartbeat_every: _duration_pb2.Duration
    def __init__(self, worker_id: _Optional[int] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., heartbeat_every: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Assignments(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Assignment]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("job_id", "fence", "kind", "queue", "payload", "attempt", "max_attempts", "timeout", "key", "metadata", "traceparent", "tracestate", "worker_id", "recurrence", "lane", "step")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RECURRENCE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    fence: int
    kind: str
    queue: str
    payload: str
    attempt: int
    max_attempts: int
    timeout: _duration_pb2.Duration
    key: str
    metadata: str
    traceparent: str
    tracestate: str
    worker_id: int
    recurrence: Recurrence
    lane: str
    step: CurrentStep
    def __init__(self, job_id: _Optional[int] = ..., fence: _Optional[int] = ..., kind: _Optional[str] = ..., queue: _Optional[str] = ..., payload: _Optional[str] = ..., attempt: _Optional[int] = ..., max_attempts: _Optional[int] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., key: _Optional[str] = ..., metadata: _Optional[str] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., worker_id: _Optional[int] = ..., recurrence: _Optional[_Union[Recurrence, _Mapping]] = ..., lane: _Optional[str] = ..., step: _Optional[_Union[CurrentStep, _Mapping]] = ...) -> None: ...

class CurrentStep(_message.Message):
    __slots__ = ("pipeline_id", "name", "parents")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    name: str
    parents: _containers.RepeatedCompositeFieldContainer[ParentStep]
    def __init__(self, pipeline_id: _Optional[int] = ..., name: _Optional[str] = ..., parents: _Optional[_Iterable[_Union[ParentStep, _Mapping]]] = ...) -> None: ...

class ParentStep(_message.Message):
    __slots__ = ("name", "state", "result", "result_left_out")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    result: str
    result_left_out: bool
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., result: _Optional[str] = ..., result_left_out: bool = ...) -> None: ...

class Recurrence(_message.Message):
    __slots__ = ("recurring_id", "key", "planned_at", "consecutive_failures", "interval", "cadence", "misfire", "version", "claimed_at")
    RECURRING_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLANNED_AT_FIELD_NUMBER: _ClassVar[int]
    CONSECUTIVE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CADENCE_FIELD_NUMBER: _ClassVar[int]
    MISFIRE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_FIELD_NUMBER: _ClassVar[int]
    recurring_id: int
    key: str
    planned_at: _timestamp_pb2.Timestamp
    consecutive_failures: int
    interval: _duration_pb2.Duration
    cadence: str
    misfire: str
    version: int
    claimed_at: _timestamp_pb2.Timestamp
    def __init__(self, recurring_id: _Optional[int] = ..., key: _Optional[str] = ..., planned_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., consecutive_failures: _Optional[int] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., cadence: _Optional[str] = ..., misfire: _Optional[str] = ..., version: _Optional[int] = ..., claimed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_ids", "ended")
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    worker_ids: _containers.RepeatedScalarFieldContainer[int]
    ended: _containers.RepeatedCompositeFieldContainer[EndedStream]
    def __init__(self, worker_ids: _Optional[_Iterable[int]] = ..., ended: _Optional[_Iterable[_Union[EndedStream, _Mapping]]] = ...) -> None: ...

class EndedStream(_message.Message):
    __slots__ = ("worker_id", "holding")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    holding: _containers.RepeatedCompositeFieldContainer[Claim]
    def __init__(self, worker_id: _Optional[int] = ..., holding: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("cancelled", "dead_worker_ids", "draining_worker_ids")
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    DEAD_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    cancelled: _containers.RepeatedCompositeFieldContainer[Claim]
    dead_worker_ids: _containers.RepeatedScalarFieldContainer[int]
    draining_worker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cancelled: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., dead_worker_ids: _Optional[_Iterable[int]] = ..., draining_worker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("job_id", "fence", "worker_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    fence: int
    worker_id: int
    def __init__(self, job_id: _Optional[int] = ..., fence: _Optional[int] = ..., worker_id: _Optional[int] = ...) -> None: ...

class ReportResultRequest(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("claim", "complete", "fail", "bury", "snooze", "release", "progress", "completed_by_handler", "last_progress")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FAIL_FIELD_NUMBER: _ClassVar[int]
    BURY_FIELD_NUMBER: _ClassVar[int]
    SNOOZE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_BY_HANDLER_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    claim: Claim
    complete: Complete
    fail: Fail
    bury: Bury
    snooze: Snooze
    release: Release
    progress: Progress
    completed_by_handler: bool
    last_progress: Progress
    def __init__(self, claim: _Optional[_Union[Claim, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ..., fail: _Optional[_Union[Fail, _Mapping]] = ..., bury: _Optional[_Union[Bury, _Mapping]] = ..., snooze: _Optional[_Union[Snooze, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., completed_by_handler: bool = ..., last_progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ("result", "forget", "then", "found", "next_at")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    result: str
    forget: bool
    then: _containers.RepeatedCompositeFieldContainer[NewJob]
    found: int
    next_at: _timestamp_pb2.Timestamp
    def __init__(self, result: _Optional[str] = ..., forget: bool = ..., then: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ..., found: _Optional[int] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Fail(_message.Message):
    __slots__ = ("error", "retry_after", "cause")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    error: str
    retry_after: _duration_pb2.Duration
    cause: FailureCause
    def __init__(self, error: _Optional[str] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., cause: _Optional[_Union[FailureCause, str]] = ...) -> None: ...

class Bury(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Snooze(_message.Message):
    __slots__ = ("delay",)
    DELAY_FIELD_NUMBER: _ClassVar[int]
    delay: _duration_pb2.Duration
    def __init__(self, delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Progress(_message.Message):
    __slots__ = ("fraction", "note")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    note: str
    def __init__(self, fraction: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class ReportResultResponse(_message.Message):
    __slots__ = ("written", "problems")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    written: _containers.RepeatedScalarFieldContainer[Written]
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, written: _Optional[_Iterable[_Union[Written, str]]] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[NewJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ...) -> None: ...

class NewJob(_message.Message):
    __slots__ = ("kind", "payload", "queue", "run_at", "priority", "max_attempts", "timeout", "key", "metadata", "delay", "lane", "lane_pass", "step")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LANE_PASS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    payload: str
    queue: str
    run_at: _timestamp_pb2.Timestamp
    priority: int
    max_attempts: int
    timeout: _duration_pb2.Duration
    key: str
    metadata: str
    delay: _duration_pb2.Duration
    lane: str
    lane_pass: bool
    step: str
    def __init__(self, kind: _Optional[str] = ..., payload: _Optional[str] = ..., queue: _Optional[str] = ..., run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., priority: _Optional[int] = ..., max_attempts: _Optional[int] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., key: _Optional[str] = ..., metadata: _Optional[str] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lane: _Optional[str] = ..., lane_pass: bool = ..., step: _Optional[str] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Enqueued]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Enqueued, _Mapping]]] = ...) -> None: ...

class Enqueued(_message.Message):
    __slots__ = ("job_id", "is_new")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    is_new: bool
    def __init__(self, job_id: _Optional[int] = ..., is_new: bool = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    def __init__(self, job_id: _Optional[int] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "state", "kind", "queue", "priority", "attempt", "max_attempts", "run_at", "enqueued_at", "claimed_at", "finished_at", "key", "payload", "metadata", "progress", "note", "errors", "result", "redacted", "lane", "pipeline_id", "step", "unserved")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_FIELD_NUMBER: _ClassVar[int]
    id: int
    state: JobState
    kind: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    run_at: _timestamp_pb2.Timestamp
    enqueued_at: _timestamp_pb2.Timestamp
    claimed_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    key: str
    payload: str
    metadata: str
    progress: float
    note: str
    errors: str
    result: str
    redacted: bool
    lane: str
    pipeline_id: int
    step: str
    unserved: bool
    def __init__(self, id: _Optional[int] = ..., state: _Optional[_Union[JobState, str]] = ..., kind: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., attempt: _Optional[int] = ..., max_attempts: _Optional[int] = ..., run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., enqueued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., claimed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., key: _Optional[str] = ..., payload: _Optional[str] = ..., metadata: _Optional[str] = ..., progress: _Optional[float] = ..., note: _Optional[str] = ..., errors: _Optional[str] = ..., result: _Optional[str] = ..., redacted: bool = ..., lane: _Optional[str] = ..., pipeline_id: _Optional[int] = ..., step: _Optional[str] = ..., unserved: bool = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    def __init__(self, job_id: _Optional[int] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ("at_once",)
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    at_once: bool
    def __init__(self, at_once: bool = ...) -> None: ...

class RecurringName(_message.Message):
    __slots__ = ("recurring_id", "key")
    RECURRING_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    recurring_id: int
    key: RecurringKey
    def __init__(self, recurring_id: _Optional[int] = ..., key: _Optional[_Union[RecurringKey, _Mapping]] = ...) -> None: ...

class RecurringKey(_message.Message):
    __slots__ = ("kind", "key")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class CreateRecurringRequest(_message.Message):
    __slots__ = ("job", "cadence", "misfire")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CADENCE_FIELD_NUMBER: _ClassVar[int]
    MISFIRE_FIELD_NUMBER: _ClassVar[int]
    job: NewJob
    cadence: str
    misfire: str
    def __init__(self, job: _Optional[_Union[NewJob, _Mapping]] = ..., cadence: _Optional[str] = ..., misfire: _Optional[str] = ...) -> None: ...

class CreateRecurringResponse(_message.Message):
    __slots__ = ("is_new", "recurring")
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    RECURRING_FIELD_NUMBER: _ClassVar[int]
    is_new: bool
    recurring: Recurring
    def __init__(self, is_new: bool = ..., recurring: _Optional[_Union[Recurring, _Mapping]] = ...) -> None: ...

class GetRecurringRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ...) -> None: ...

class GetRecurringResponse(_message.Message):
    __slots__ = ("recurring",)
    RECURRING_FIELD_NUMBER: _ClassVar[int]
    recurring: Recurring
    def __init__(self, recurring: _Optional[_Union[Recurring, _Mapping]] = ...) -> None: ...

class EnableRecurringRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ...) -> None: ...

class EnableRecurringResponse(_message.Message):
    __slots__ = ("recurring",)
    RECURRING_FIELD_NUMBER: _ClassVar[int]
    recurring: Recurring
    def __init__(self, recurring: _Optional[_Union[Recurring, _Mapping]] = ...) -> None: ...

class DisableRecurringRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ...) -> None: ...

class DisableRecurringResponse(_message.Message):
    __slots__ = ("recurring",)
    RECURRING_FIELD_NUMBER: _ClassVar[int]
    recurring: Recurring
    def __init__(self, recurring: _Optional[_Union[Recurring, _Mapping]] = ...) -> None: ...

class RunRecurringRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ...) -> None: ...

class RunRecurringResponse(_message.Message):
    __slots__ = ("is_due",)
    IS_DUE_FIELD_NUMBER: _ClassVar[int]
    is_due: bool
    def __init__(self, is_due: bool = ...) -> None: ...

class ChangeRecurringRequest(_message.Message):
    __slots__ = ("name", "cadence", "misfire")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CADENCE_FIELD_NUMBER: _ClassVar[int]
    MISFIRE_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    cadence: str
    misfire: str
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ..., cadence: _Optional[str] = ..., misfire: _Optional[str] = ...) -> None: ...

class ChangeRecurringResponse(_message.Message):
    __slots__ = ("recurring",)
    RECURRING_FIELD_NUMBER: _ClassVar[int]
    recurring: Recurring
    def __init__(self, recurring: _Optional[_Union[Recurring, _Mapping]] = ...) -> None: ...

class DeleteRecurringRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ...) -> None: ...

class DeleteRecurringResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRunTimesRequest(_message.Message):
    __slots__ = ("name", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: RecurringName
    count: int
    def __init__(self, name: _Optional[_Union[RecurringName, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class ListRunTimesResponse(_message.Message):
    __slots__ = ("times",)
    TIMES_FIELD_NUMBER: _ClassVar[int]
    times: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
    def __init__(self, times: _Optional[_Iterable[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]]] = ...) -> None: ...

class Recurring(_message.Message):
    __slots__ = ("id", "kind", "key", "queue", "priority", "cadence", "misfire", "enabled", "running", "next_run_at", "reason", "interval", "runs", "skipped", "last_run_at", "last_error", "consecutive_failures", "timeout", "max_attempts", "payload", "metadata", "created_at", "updated_at", "redacted")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CADENCE_FIELD_NUMBER: _ClassVar[int]
    MISFIRE_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    CONSECUTIVE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    key: str
    queue: str
    priority: int
    cadence: str
    misfire: str
    enabled: bool
    running: bool
    next_run_at: _timestamp_pb2.Timestamp
    reason: str
    interval: _duration_pb2.Duration
    runs: int
    skipped: int
    last_run_at: _timestamp_pb2.Timestamp
    last_error: str
    consecutive_failures: int
    timeout: _duration_pb2.Duration
    max_attempts: int
    payload: str
    metadata: str
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    redacted: bool
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., key: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., cadence: _Optional[str] = ..., misfire: _Optional[str] = ..., enabled: bool = ..., running: bool = ..., next_run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., runs: _Optional[int] = ..., skipped: _Optional[int] = ..., last_run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_error: _Optional[str] = ..., consecutive_failures: _Optional[int] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_attempts: _Optional[int] = ..., payload: _Optional[str] = ..., metadata: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., redacted: bool = ...) -> None: ...

class CreatePipelineRequest(_message.Message):
    __slots__ = ("name", "on_failure", "steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    on_failure: str
    steps: _containers.RepeatedCompositeFieldContainer[NewStep]
    def __init__(self, name: _Optional[str] = ..., on_failure: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[NewStep, _Mapping]]] = ...) -> None: ...

class NewStep(_message.Message):
    __slots__ = ("name", "job", "after")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    job: NewJob
    after: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., job: _Optional[_Union[NewJob, _Mapping]] = ..., after: _Optional[_Iterable[str]] = ...) -> None: ...

class CreatePipelineResponse(_message.Message):
    __slots__ = ("pipeline_id",)
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    def __init__(self, pipeline_id: _Optional[int] = ...) -> None: ...

class GetPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id",)
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    def __init__(self, pipeline_id: _Optional[int] = ...) -> None: ...

class GetPipelineResponse(_message.Message):
    __slots__ = ("pipeline",)
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    pipeline: Pipeline
    def __init__(self, pipeline: _Optional[_Union[Pipeline, _Mapping]] = ...) -> None: ...

class CancelPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id",)
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    def __init__(self, pipeline_id: _Optional[int] = ...) -> None: ...

class CancelPipelineResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class RetryPipelineRequest(_message.Message):
    __slots__ = ("pipeline_id",)
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    def __init__(self, pipeline_id: _Optional[int] = ...) -> None: ...

class RetryPipelineResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("id", "name", "state", "on_failure", "created_at", "cancelled_at", "finished_at", "steps")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: str
    on_failure: str
    created_at: _timestamp_pb2.Timestamp
    cancelled_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., on_failure: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancelled_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("name", "state", "after", "kind", "queue", "job_id", "ended_at", "result", "result_left_out")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    after: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    queue: str
    job_id: int
    ended_at: _timestamp_pb2.Timestamp
    result: str
    result_left_out: bool
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., after: _Optional[_Iterable[str]] = ..., kind: _Optional[str] = ..., queue: _Optional[str] = ..., job_id: _Optional[int] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., result: _Optional[str] = ..., result_left_out: bool = ...) -> None: ...
