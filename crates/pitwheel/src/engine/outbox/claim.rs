//! Claims of entities: taken under a lock, ended by their holder or when its relay is dead.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::engine::outbox::source::SourceTable;
use crate::error::Error;
use crate::postgres::{Params, Pool, Sql, no_answer, query};

const CLAIM_LIMIT: &str = include_str!("../../../sql/outbox/claim_limit.sql");

/// How entities are locked while they are claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntityLock {
    /// By an advisory lock.
    Advisory,
    /// By the row of the entity's first event.
    Row,
}

impl EntityLock {
    /// The name of the strategy.
    pub(super) fn name(self) -> &'static str {
        match self {
            EntityLock::Advisory => "advisory",
            EntityLock::Row => "row-lock",
        }
    }
}

/// The claims of one source.
pub(super) struct Claims {
    pool: Pool,
    source_name: String,
    candidates: String,
    lock: EntityLock,
    lock_heads: String,
}

/// An entity that has events to send.
pub(super) struct Candidate {
    pub(super) key: String,
    /// No living relay holds it, and it is not parked.
    pub(super) is_free: bool,
    /// The lease of its claim, if the relay that holds it is dead.
    pub(super) dead_lease: Option<String>,
}

impl Claims {
    pub(super) fn new(pool: Pool, source: &SourceTable, lock: EntityLock) -> Claims {
        Claims {
            pool,
            source_name: source.name(),
            candidates: source.statement(include_str!("../../../sql/outbox/candidates.sql")),
            lock,
            lock_heads: source.statement(include_str!("../../../sql/outbox/lock_heads.sql")),
        }
    }

    /// Up to `most` entities from a key on, in the order of keys.
    pub(super) async fn candidates(&self, from: &str, most: usize) -> Result<Vec<Candidate>, Error> {
        let most = most as i64;
        let params: Params = &[(&from, Type::TEXT), (&most, Type::INT8), (&self.source_name, Type::TEXT)];
        let rows = self.pool.run(async |client| client.rows(&self.candidates, params).await).await?;
        let candidate = |row: &tokio_postgres::Row| Candidate {
            key: row.get(0),
            is_free: row.get(1),
            dead_lease: row.get(2),
        };
        Ok(rows.iter().map(candidate).collect())
    }

    /// Claims entities for a relay. Returns those that were claimed, each with its lease.
    pub(super) async fn claim(
        &self,
        keys: &[String],
        relay: &str,
        limit: Duration,
    ) -> Result<Vec<(String, String)>, Error> {
        let claimed = tokio::time::timeout(limit, self.lock_and_claim(keys, relay)).await;
        claimed.unwrap_or_else(|_| Err(no_answer(limit)))
    }

    /// In one transaction: the locks, then the claims, by a statement of its own, which sees what was committed before the locks were
    /// taken.
    async fn lock_and_claim(&self, keys: &[String], relay: &str) -> Result<Vec<(String, String)>, Error> {
        let mut client = self.pool.get().await?;
        let transaction = client.begin().await?;
        let (limited, locked) =
            tokio::join!(transaction.batch_execute(CLAIM_LIMIT), self.lock(&transaction, keys));
        limited?;
        let locked = locked?;
        let params: Params =
            &[(&self.source_name, Type::TEXT), (&locked, Type::TEXT_ARRAY), (&relay, Type::TEXT)];
        let sql = include_str!("../../../sql/outbox/claim_entities.sql");
        let claimed = query(&*transaction, sql, params).await?;
        transaction.commit().await?;
        Ok(claimed.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Takes the locks of those entities that are not locked; returns their keys.
    async fn lock(&self, client: &Client, keys: &[String]) -> Result<Vec<String>, Error> {
        let rows = match self.lock {
            EntityLock::Advisory => {
                let params: Params = &[(&keys, Type::TEXT_ARRAY), (&self.source_name, Type::TEXT)];
                query(client, include_str!("../../../sql/outbox/lock_advisory.sql"), params).await?
            }
            EntityLock::Row => query(client, &self.lock_heads, &[(&keys, Type::TEXT_ARRAY)]).await?,
        };
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Ends claims, given as keys and leases.
    pub(super) async fn free(&self, keys: &[String], leases: &[String]) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let params: Params =
            &[(&self.source_name, Type::TEXT), (&keys, Type::TEXT_ARRAY), (&leases, Type::TEXT_ARRAY)];
        let sql = include_str!("../../../sql/outbox/free_entities.sql");
        self.pool.run(async |client| query(&client, sql, params).await).await?;
        Ok(())
    }

    /// Ends the claims of a relay that are not among these leases.
    pub(super) async fn free_unknown(&self, relay: &str, leases: &[String]) -> Result<(), Error> {
        let sql = include_str!("../../../sql/outbox/free_unknown.sql");
        let params: Params = &[(&relay, Type::TEXT), (&leases, Type::TEXT_ARRAY)];
        self.pool.run(async |client| query(&client, sql, params).await).await?;
        Ok(())
    }
}
