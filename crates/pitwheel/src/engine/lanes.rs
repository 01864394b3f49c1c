//! Promotion: a lane without a head gets one.
//!
//! An enqueue through the library promotes its lanes itself, and a settle makes the next job of the lane its head. What neither could
//! see, because two transactions overlapped, or because a user's transaction had enqueued, is in `pitwheel.lane_check`. Every node
//! looks there once a second, and again at once while more is left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;

use crate::engine::hint::{Hints, log_unhinted};
use crate::engine::look_times::LookTimes;
use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::limits::LANES_MAX;
use crate::metrics;
use crate::postgres::{Pool, Sql};

const PROMOTE_CHECKED: &str = include_str!("../../sql/engine/promote_checked.sql");
const PROMOTE_LANES: &str = include_str!("../../sql/engine/promote_lanes.sql");

/// Statements per look, so that one stays short.
const PAGES_MAX: usize = 50;
/// The pause after a look that left some: hardly a part of the seconds that the look takes, but other nodes find rows too.
const MORE: Duration = Duration::from_millis(50);
/// The transaction from which a deep look reads: after a failover that lost transactions, their ids are given again.
const FIRST: &str = "0";

/// What one statement promoted.
pub struct Promoted {
    /// The queue of each new head.
    pub queues: Vec<String>,
    /// The transaction from which to read the next time.
    pub first: String,
    /// Whether there may be more.
    pub full: bool,
}

/// Promotes up to 100 of the lanes that need it, of the transactions from `first` on (at first `0`).
pub async fn promote_checked(client: &impl Sql, first: &str) -> Result<Promoted, Error> {
    let most = i32::try_from(LANES_MAX).unwrap_or(i32::MAX);
    let rows = client.rows(PROMOTE_CHECKED, &[(&first, Type::TEXT), (&most, Type::INT4)]).await?;
    let row = rows.first().ok_or_else(|| Error::Invalid("a promotion returned no row".into()))?;
    Ok(Promoted { queues: row.get(0), first: row.get(1), full: row.get::<_, i32>(2) >= most })
}

/// Promotes these lanes, given as JSON text, unless they have a head. Returns the queues of the new heads.
pub(crate) async fn promote_lanes(client: &impl Sql, lanes: &[&str]) -> Result<BTreeSet<String>, Error> {
    let mut queues = BTreeSet::new();
    for part in lanes.chunks(LANES_MAX) {
        let rows = client.rows(PROMOTE_LANES, &[(&part, Type::TEXT_ARRAY)]).await?;
        queues.extend(rows.iter().flat_map(|row| row.get::<_, Vec<String>>(0)));
    }
    Ok(queues)
}

/// Promotes lanes that need it, once a second, until `stop`. `name` is for logs.
pub(crate) async fn look_after_lanes(pool: &Pool, name: &str, stop: &CancellationToken) {
    let mut retry_delay = RetryDelay::default();
    let mut first = FIRST.to_owned();
    let mut looks = LookTimes::new(Instant::now());
    let hints = Hints::new(pool.clone());
    while !stop.is_cancelled() {
        // A deep look has its own start: if it fails, the others go on from theirs.
        let is_deep = looks.begin(Instant::now());
        let looked = match is_deep {
            true => look_once(pool, &hints, &mut FIRST.to_owned()).await,
            false => look_once(pool, &hints, &mut first).await,
        };
        let now = Instant::now();
        match looked {
            Ok(looked) => {
                retry_delay.reset();
                looks.succeeded(looked.took_for_nothing(), now);
                let next = if looked.all { looks.next } else { now + MORE };
                tokio::select! {
                    () = tokio::time::sleep_until(next.into()) => {}
                    () = stop.cancelled() => {}
                }
            }
            Err(error) => {
                looks.failed(now);
                tracing::warn!(%error, worker = name, "cannot promote jobs of lanes, will try again");
                retry_delay.wait(stop).await;
            }
        }
    }
}

/// What a look did.
#[derive(Default)]
struct Looked {
    /// How many lanes it promoted.
    promoted: usize,
    /// The time of its statements, without the wait for a connection.
    took: Duration,
    /// Nothing is left.
    all: bool,
}

impl Looked {
    /// A look takes long if it promotes much, and jobs wait for that. One that takes long for nothing reads dead rows behind an open
    /// transaction, and is made less often.
    fn took_for_nothing(&self) -> Duration {
        if self.promoted > 0 { Duration::ZERO } else { self.took }
    }
}

async fn look_once(pool: &Pool, hints: &Hints, first: &mut String) -> Result<Looked, Error> {
    let mut looked = Looked::default();
    for _ in 0..PAGES_MAX {
        let promote = async |client| {
            let begun = Instant::now();
            Ok((promote_checked(&client, first).await?, begun.elapsed()))
        };
        let (promoted, took) = pool.run(promote).await?;
        looked.took += took;
        metrics::promoted(promoted.queues.len());
        looked.promoted += promoted.queues.len();
        first.clone_from(&promoted.first);
        let queues: BTreeSet<String> = promoted.queues.into_iter().collect();
        for queue in queues {
            log_unhinted(pool.run(async |client| hints.due(&client, &queue).await).await);
        }
        if !promoted.full {
            return Ok(Looked { all: true, ..looked });
        }
    }
    Ok(looked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_look_is_followed_by_a_pause_unless_it_has_promoted() {
        let start = Instant::now();
        let pause_after = |promoted| {
            let mut looks = LookTimes::new(start);
            looks.begin(start);
            let looked = Looked { promoted, took: Duration::from_secs(2), all: true };
            looks.succeeded(looked.took_for_nothing(), start);
            looks.next - start
        };
        assert_eq!(pause_after(1), Duration::from_secs(1));
        assert_eq!(pause_after(0), Duration::from_secs(10));
    }
}
