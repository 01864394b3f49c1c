//! The lease of a relay: one row, which covers all that it holds.

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use crate::engine::enqueue::millis;
use crate::error::Error;
use crate::postgres::{Params, Pool, query};

/// Renewals per lease: four may fail before the fifth is too late.
const RENEWALS: u32 = 5;
/// The part of a lease after which nothing is sent any more (a fifth is left). It covers the time that a sink needs to give up what
/// it has accepted, and differences between clocks.
const MARGIN_PART: u32 = 5;
/// A shorter lease expires in an ordinary pause of a process or a database.
const LEASE_MIN: Duration = Duration::from_millis(500);
/// After a longer one, events of a dead relay would wait too long for another one.
const LEASE_MAX: Duration = Duration::from_secs(600);

/// How a relay holds events.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// A name for people; it need not be unique.
    pub name: String,
    /// How long others wait for this relay after its last renewal.
    pub lease: Duration,
    /// How long delivered events are kept in `outbox_sent`. `None`: they are deleted.
    pub keep: Option<Duration>,
    /// The shards that this relay holds. `None`: a fair share of those that no relay was told to hold. Only for [`Shards`](super::Shards).
    pub shards: Option<Vec<i16>>,
}

impl Default for RelayOptions {
    fn default() -> RelayOptions {
        RelayOptions { name: "relay".to_owned(), lease: Duration::from_secs(10), keep: None, shards: None }
    }
}

impl RelayOptions {
    pub(super) fn check(&self) -> Result<(), Error> {
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            return Err(Error::Invalid(format!(
                "lease {:?} is out of range: {LEASE_MIN:?} to {LEASE_MAX:?}",
                self.lease
            )));
        }
        Ok(())
    }
}

/// The result of keeping a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is the same relay.
    Same,
    /// It is a new relay: what it held before is lost.
    New,
}

/// The row of a relay.
pub(super) struct RelayLease {
    pool: Pool,
    options: RelayOptions,
    source: String,
    strategy: &'static str,
    relay: Option<String>,
    /// Before the last renewal was sent, so that the lease ends here before it ends at the database.
    renewed_at: Instant,
}

impl RelayLease {
    /// Registers nothing yet.
    pub(super) fn new(
        pool: Pool,
        options: RelayOptions,
        source: &str,
        strategy: &'static str,
    ) -> Result<RelayLease, Error> {
        options.check()?;
        let source = source.to_owned();
        Ok(RelayLease { pool, options, source, strategy, relay: None, renewed_at: Instant::now() })
    }

    /// Registers the relay, or renews its lease when that is due. Call it when nothing that is held is on its way to a sink.
    pub(super) async fn keep(&mut self) -> Result<Kept, Error> {
        if self.renew().await? {
            return Ok(Kept::Same);
        }
        let begun = Instant::now();
        self.relay = Some(self.register().await?);
        self.renewed_at = begun;
        Ok(Kept::New)
    }

    /// Renews the lease when that is due. False: it has expired, and all that was held is lost. It does not register: the deadline of another
    /// relay would count for events that are on their way.
    pub(super) async fn renew(&mut self) -> Result<bool, Error> {
        let Some(relay) = &self.relay else { return Ok(false) };
        let begun = Instant::now();
        if begun.duration_since(self.renewed_at) < self.options.lease / RENEWALS {
            return Ok(true);
        }
        if self.pool.run(async |client| renew(&client, relay).await).await? {
            self.renewed_at = begun;
            return Ok(true);
        }
        tracing::warn!(relay = self.options.name, "the lease has expired: it is a new relay from now on");
        self.relay = None;
        Ok(false)
    }

    /// The next call of [`RelayLease::keep`] renews, even if that is not due.
    pub(super) fn renew_soon(&mut self) {
        self.renewed_at = self.renewed_at.min(Instant::now() - self.options.lease / RENEWALS);
    }

    /// The relay's id, if it is registered.
    pub(super) fn relay(&self) -> Option<&str> {
        self.relay.as_deref()
    }

    /// Nothing may be sent after this. It has passed if the lease was lost.
    pub(super) fn deadline(&self) -> Instant {
        match self.relay {
            Some(_) => self.renewed_at + self.options.lease - self.options.lease / MARGIN_PART,
            None => self.renewed_at,
        }
    }

    /// How long others wait for this relay.
    pub(super) fn length(&self) -> Duration {
        self.options.lease
    }

    /// Declares relays dead whose lease has expired.
    pub(super) async fn sweep(&self) -> Result<(), Error> {
        let sql = include_str!("../../../sql/outbox/sweep_relays.sql");
        let dead = self.pool.run(async |client| query(&client, sql, &[]).await).await?;
        let dead: i64 = dead.first().map_or(0, |row| row.get(0));
        if dead > 0 {
            tracing::info!(relay = self.options.name, dead, "declared relays dead whose lease has expired");
        }
        Ok(())
    }

    /// Signs the relay off.
    pub(super) async fn end(&mut self) -> Result<(), Error> {
        let Some(relay) = self.relay.take() else { return Ok(()) };
        let sql = include_str!("../../../sql/outbox/end_relay.sql");
        self.pool.run(async |client| query(&client, sql, &[(&relay, Type::TEXT)]).await).await?;
        Ok(())
    }

    async fn register(&self) -> Result<String, Error> {
        // A dead relay must not keep others out.
        self.sweep().await?;
        let mut client = self.pool.get().await?;
        let transaction = client.begin().await?;
        let lock = include_str!("../../../sql/outbox/lock_registration.sql");
        query(&*transaction, lock, &[(&self.source, Type::TEXT)]).await?;
        let lease = millis(self.options.lease);
        let params: Params = &[
            (&self.options.name, Type::TEXT),
            (&self.source, Type::TEXT),
            (&self.strategy, Type::TEXT),
            (&lease, Type::INT8),
            (&self.options.shards, Type::INT2_ARRAY),
        ];
        let sql = include_str!("../../../sql/outbox/register_relay.sql");
        let rows = query(&*transaction, sql, params).await?;
        transaction.commit().await?;
        let source = &self.source;
        rows.first().map(|row| row.get(0)).ok_or_else(|| {
            let others = if self.strategy == "shards" { "`advisory` or `row-lock`" } else { "`shards`" };
            Error::Invalid(format!(
                "other relays send the events of `{source}` by {others}: stop them first, or use their strategy"
            ))
        })
    }
}

async fn renew(client: &impl crate::postgres::Sql, relay: &str) -> Result<bool, Error> {
    let sql = include_str!("../../../sql/outbox/renew_relay.sql");
    Ok(!client.rows(sql, &[(&relay, Type::TEXT)]).await?.is_empty())
}
