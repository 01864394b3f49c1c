//! The valid tokens, kept in memory and read from the database again every two seconds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use pitwheel::Error;
use pitwheel::engine::{Pool, TokenHash, hash, token_hashes};

use crate::auth::caller::Caller;

/// How old the tokens in memory may be: a revoked token may still be accepted for this long.
const AGE_MAX: Duration = Duration::from_secs(2);
/// The same where streams are ended: with the time between two looks, a stream ends within two seconds.
const STREAM_AGE_MAX: Duration = Duration::from_secs(1);
/// An unknown token may be a new one. The tokens are read again for it, at most this often, and the caller waits this
/// long, so that guessing is slow and causes few database reads.
const UNKNOWN_DELAY: Duration = Duration::from_millis(200);

/// The valid tokens by the hash of their secret.
pub(crate) struct Tokens {
    pool: Pool,
    by_hash: RwLock<HashMap<Vec<u8>, TokenHash>>,
    /// When the last read began, or failed.
    read_at: Mutex<Option<Instant>>,
    /// Keeps two reads apart.
    reading: tokio::sync::Mutex<()>,
}

impl Tokens {
    pub(crate) fn new(pool: Pool) -> Tokens {
        Tokens { pool, by_hash: RwLock::default(), read_at: Mutex::default(), reading: Default::default() }
    }

    fn read_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.read_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn by_hash(&self) -> RwLockReadGuard<'_, HashMap<Vec<u8>, TokenHash>> {
        self.by_hash.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the tokens again if those in memory are older than `age_max`.
    async fn refresh(&self, age_max: Duration) -> Result<(), Error> {
        let is_young = || self.read_at().is_some_and(|at| at.elapsed() < age_max);
        if is_young() {
            return Ok(());
        }
        let _reading = self.reading.lock().await;
        // Another caller may have read them meanwhile.
        if is_young() {
            return Ok(());
        }
        let begun = Instant::now();
        let hashes = self.pool.run(async |client| token_hashes(&client).await).await;
        // After a failure those that waited do not try again one by one, each for as long as a database takes that does not answer.
        let hashes = hashes.inspect_err(|_| *self.read_at() = Some(Instant::now()))?;
        let by_hash = hashes.into_iter().map(|token| (token.hash.clone(), token)).collect();
        *self.by_hash.write().unwrap_or_else(PoisonError::into_inner) = by_hash;
        *self.read_at() = Some(begun);
        Ok(())
    }

    /// Whether any valid token exists.
    pub(crate) async fn exist(&self) -> Result<bool, Error> {
        self.refresh(AGE_MAX).await?;
        Ok(!self.by_hash().is_empty())
    }

    /// Those of these token ids that are no longer valid.
    pub(crate) async fn revoked(&self, ids: &[i64]) -> Result<Vec<i64>, Error> {
        self.refresh(STREAM_AGE_MAX).await?;
        let by_hash = self.by_hash();
        let is_revoked = |id: &&i64| !by_hash.values().any(|token| token.id == **id);
        Ok(ids.iter().filter(is_revoked).copied().collect())
    }

    /// The caller that a secret belongs to; `None`: the secret is not valid.
    pub(crate) async fn caller(&self, secret: &str) -> Option<Caller> {
        let hash = hash(secret);
        for (wait, age_max) in [(Duration::ZERO, AGE_MAX), (UNKNOWN_DELAY, UNKNOWN_DELAY)] {
            // Tokens that are younger than the wait were read after this call began.
            tokio::time::sleep(wait).await;
            // While the database is down or does not answer, the tokens in memory stay valid.
            if let Err(error) = self.refresh(age_max).await {
                tracing::warn!(%error, "cannot read the tokens");
            }
            if let Some(token) = self.by_hash().get(&hash) {
                return Some(Caller::with_token(token.id, &token.name, token.role));
            }
        }
        None
    }
}
