//! The statements of the engine and the loops around them: the seam that `pitwheel-server`, the relay and the test kit are
//! built on.
//!
//! A function here runs one statement of `sql/engine`; its head says what the statement promises and what zero rows mean.
//! The loops ([`run_claimer`], [`maintain`], [`listen`]) are the same for a worker in your process and for a server that
//! claims for many remote workers.
//!
//! This is the interface between the crates of this project. It changes with the schema, in any release. Programs that
//! enqueue, run and operate jobs use the items at the root of the crate.

pub(crate) mod answer_limit;
pub(crate) mod batcher;
pub(crate) mod claim;
mod claim_columns;
pub(crate) mod claim_sink;
mod claimed_rows;
pub(crate) mod claimer;
pub(crate) mod cursor;
pub(crate) mod enqueue;
pub(crate) mod gauges;
pub(crate) mod hint;
mod isolate;
pub(crate) mod lanes;
pub(crate) mod lease;
mod look_times;
pub(crate) mod lost_holds;
pub(crate) mod maintenance;
pub mod outbox;
pub(crate) mod pipeline;
pub(crate) mod recurring;
pub(crate) mod retry;
pub(crate) mod run_times;
pub(crate) mod settle;
pub(crate) mod settle_columns;
mod settle_order;
pub(crate) mod settle_runs;
pub(crate) mod suspects;
pub(crate) mod sweep;
pub(crate) mod token;
pub(crate) mod unknown_claims;

pub use self::answer_limit::AnswerLimit;
pub use self::batcher::{Batcher, Linger, Weight};
pub use self::claim::{
    ClaimedJobs, claim, claim_alone, claim_by_id, claim_for_workers, look_back, release_unknown,
};
pub use self::claim_sink::{ClaimSink, Reserved};
pub use self::claimer::run_claimer;
pub use self::cursor::{Bounds, Cursor, Look, LookedBack, Position};
pub use self::gauges::{InFlight, WorkerCount, in_flight, worker_counts};
pub use self::hint::{HintListener, OnClaims, OnDue, hint_completed, hint_reported, hint_settled, listen};
pub use self::lanes::{Promoted, promote_checked};
pub use self::lease::{
    AttemptInfo, HeartbeatReply, Hold, Registration, Renewed, alive_workers, attempts, cancel_requests,
    claims_of_token, heartbeat, held, progress, register, renew, retire, workers_of_token,
};
pub use self::lost_holds::restore_holds;
pub use self::maintenance::{
    RENEWALS, RestoredRows, lease_limit, maintain, prepare_history, prune_all, restore_rows,
};
pub use self::pipeline::repair_pipelines;
pub use self::recurring::{PlannedRuns, plan_runs, restore_lost_runs};
pub use self::retry::RetryDelay;
pub use self::run_times::RunTimes;
pub use self::settle::{settle, settle_with_due, written_followers};
pub use self::settle_columns::SettleResult;
pub use self::sweep::{Abandoned, Swept, declare_dead, forget_workers, settle_abandoned, sweep};
pub use self::token::{TokenHash, hash, token_hashes};
pub use crate::job::claim::{Claimed, QueueSlots};
pub use crate::job::ending::{
    Attempt, Cause, Completion, Ending, Failure, Outcome, Settlement, decide, error_entry,
};
pub use crate::job::followers::check_followers;
pub use crate::job::limits;
pub use crate::job::new_job::check_name;
pub use crate::job::pace::{AHEAD_MAX, Pace};
pub use crate::job::recurrence::Plan;
pub use crate::job::run_ending::{decide_run, skip_late};
pub use crate::postgres::{Ctid, MIGRATION_LOCK, MIGRATIONS, Pool, Session, Sql};
