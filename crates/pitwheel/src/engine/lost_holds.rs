//! Restoring holds that are gone although their jobs still run. A failover to a server that had not received a settle shows the job as
//! running again, while the worker has deleted its hold: nothing would find the job any more.

use std::time::{Duration, Instant, SystemTime};

use tokio_postgres::types::Type;

use crate::engine::enqueue::unsigned;
use crate::engine::settle::settle;
use crate::error::Error;
use crate::job::claim::Claim;
use crate::job::ending::{Settlement, after_crash};
use crate::postgres::{Params, Sql, query};

/// Jobs per look: some 5 ms of the server.
const PAGE: i64 = 5000;
/// How often all jobs are looked at if the server stays the same: for holds that a person has deleted.
const PASS_EVERY: Duration = Duration::from_secs(3600);

/// When a node looks at which jobs: at all of them, a page at a time, once it has started, when it finds another server or one that has
/// restarted, and every hour.
pub(crate) struct Passes {
    server_started_at: Option<SystemTime>,
    last_ended: Option<Instant>,
    /// The id above which the pass goes on. `None`: there is no pass.
    above: Option<i64>,
}

impl Passes {
    pub(crate) fn new() -> Passes {
        Passes { server_started_at: None, last_ended: None, above: Some(0) }
    }

    /// A server answers that started at this time.
    pub(crate) fn answered(&mut self, server_started_at: SystemTime) {
        let before = self.server_started_at.replace(server_started_at);
        if before.is_some_and(|before| before != server_started_at) {
            self.above = Some(0);
        }
    }

    /// The id above which to look now, if at all.
    pub(crate) fn next(&mut self, now: Instant) -> Option<i64> {
        if self.last_ended.is_some_and(|ended| now >= ended + PASS_EVERY) {
            self.last_ended = None;
            self.above = Some(0);
        }
        self.above
    }

    /// The result of a look: the id up to which it looked; 0: there are no more jobs.
    pub(crate) fn looked_up_to(&mut self, last: i64, now: Instant) {
        self.above = Some(last).filter(|last| *last > 0);
        if self.above.is_none() {
            self.last_ended = Some(now);
        }
    }
}

/// Restores the holds of a page of jobs above this id; see `restore_holds.sql`. What a forgotten worker held is released here. Returns the
/// id up to which it looked; 0: there are no more jobs.
pub async fn restore_holds(client: &impl Sql, above: i64) -> Result<i64, Error> {
    let params: Params = &[(&above, Type::INT8), (&PAGE, Type::INT8)];
    let rows = query(client, include_str!("../../sql/engine/restore_holds.sql"), params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let (last, restored): (i64, i64) = (row.get("last"), row.get("restored"));
    let forgotten = rows.iter().filter_map(|row| {
        let claim = Claim {
            id: row.get::<_, Option<i64>>("id")?,
            fence: row.get("fence"),
            holder: row.get("holder"),
        };
        let ending = after_crash(row.get("crashes"), unsigned(row.get("attempt")), "forgotten");
        Some(Settlement::new(claim, ending))
    });
    let forgotten: Vec<Settlement> = forgotten.collect();
    if restored > 0 || !forgotten.is_empty() {
        tracing::warn!(
            restored,
            forgotten = forgotten.len(),
            "running jobs had no hold, after a failover that lost their endings or a deletion by hand"
        );
        settle(client, &forgotten, &[]).await?;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jobs_are_looked_at_after_a_start_at_another_server_and_every_hour() {
        let (first, second) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let now = Instant::now();
        let mut passes = Passes::new();
        passes.answered(first);
        assert_eq!(passes.next(now), Some(0));
        passes.looked_up_to(5000, now);
        passes.answered(first);
        assert_eq!(passes.next(now), Some(5000));
        passes.looked_up_to(0, now);
        assert_eq!(passes.next(now), None);

        passes.answered(second);
        assert_eq!(passes.next(now), Some(0));
        passes.looked_up_to(5000, now);
        passes.answered(first);
        assert_eq!(passes.next(now), Some(0), "back at the first server");
        passes.looked_up_to(0, now);

        assert_eq!(passes.next(now + PASS_EVERY - Duration::from_secs(1)), None);
        assert_eq!(passes.next(now + PASS_EVERY), Some(0));
        passes.looked_up_to(5000, now + PASS_EVERY);
        assert_eq!(passes.next(now + PASS_EVERY), Some(5000));
    }
}
