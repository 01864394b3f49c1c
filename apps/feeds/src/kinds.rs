//! The kinds of jobs, and their queues.

use pitwheel::{History, Job, NewJob};
use serde::{Deserialize, Serialize};

/// The queue of fetches. Runs of sources are claimed by priority, then by how long they have waited.
pub const QUEUE: &str = "feeds";
/// The queue of everything else.
pub const UPKEEP_QUEUE: &str = "feeds-upkeep";

/// Fetches a source: a run of the recurring job that the source has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FetchFeed {
    /// The id of the source.
    pub source_id: i64,
}

impl Job for FetchFeed {
    const KIND: &str = "fetch_feed";
    /// The table of fetches has them already.
    const HISTORY: History = History::FailuresOnly;
}

/// Asks a hub for a subscription, or for its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubscribeWebsub {
    /// The source.
    pub source_id: i64,
    /// True: subscribe or renew. False: unsubscribe.
    pub subscribe: bool,
}

impl Job for SubscribeWebsub {
    const KIND: &str = "subscribe_websub";
}

impl SubscribeWebsub {
    /// At most one live job for a source and a direction. A hub that does not answer is asked again by the daily renewal.
    pub(crate) fn into_job(self) -> NewJob {
        let key = format!("{} {}", self.source_id, if self.subscribe { "subscribe" } else { "unsubscribe" });
        NewJob::of(&self).queue(UPKEEP_QUEUE).key(key).max_attempts(5)
    }
}

/// Renews the subscriptions at hubs that expire within a day, and deletes old fetches: one recurring job for all sources.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RenewWebsub {}

impl Job for RenewWebsub {
    const KIND: &str = "renew_websub";
}
