//! The valid tokens, kept in memory and read from the database again every two seconds.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use pitwheel::Error;
use pitwheel::engine::{Pool, TokenHash, hash, token_hashes};

use crate::auth::caller::Caller;

/// How old the tokens in memory may be: a revoked token may still be accepted for this long.
const AGE_MAX: Duration = Duration::from_secs(2);
/// The same where streams are ended, and the time between two looks at their tokens: together less than two seconds, so that a stream
/// ends within two seconds after a read of the tokens as well.
const STREAM_AGE_MAX: Duration = Duration::from_secs(1);
const STREAMS_EVERY: Duration = Duration::from_millis(500);
/// An unknown token may be a new one. The tokens are read again for it, at most this often, and the caller waits this
/// long, so that guessing is slow and causes few database reads.
const UNKNOWN_DELAY: Duration = Duration::from_millis(200);

/// The valid tokens.
pub(crate) struct Tokens {
    pool: Pool,
    known: RwLock<Known>,
    /// When the last read began, or failed.
    read_at: Mutex<Option<Instant>>,
    /// Keeps two reads apart.
    reading: tokio::sync::Mutex<()>,
}

/// The tokens that were valid when they were read.
#[derive(Default)]
struct Known {
    /// By the hash of their secret.
    ids: HashMap<Vec<u8>, i64>,
    by_id: HashMap<i64, KnownToken>,
}

struct KnownToken {
    caller: Caller,
    /// `None`: it does not expire.
    expires_at: Option<Instant>,
}

impl Known {
    /// The tokens of a read that began then: none is taken for valid after it has expired.
    fn new(hashes: Vec<TokenHash>, begun: Instant) -> Known {
        let mut known = Known::default();
        for TokenHash { hash, id, name, role, expires_in } in hashes {
            let expires_at = expires_in.and_then(|expires_in| begun.checked_add(expires_in));
            known.ids.insert(hash, id);
            known.by_id.insert(id, KnownToken { caller: Caller::with_token(id, &name, role), expires_at });
        }
        known
    }

    /// The caller with this token, if it is valid.
    fn caller(&self, id: i64, now: Instant) -> Option<&Caller> {
        let token = self.by_id.get(&id)?;
        token.expires_at.is_none_or(|at| now < at).then_some(&token.caller)
    }
}

impl Tokens {
    pub(crate) fn new(pool: Pool) -> Tokens {
        Tokens { pool, known: RwLock::default(), read_at: Mutex::default(), reading: Default::default() }
    }

    fn read_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.read_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
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
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Known::new(hashes, begun);
        *self.read_at() = Some(begun);
        Ok(())
    }

    /// The same. While the database is down or does not answer, the tokens in memory stay valid until they expire.
    async fn try_refresh(&self, age_max: Duration) {
        if let Err(error) = self.refresh(age_max).await {
            tracing::warn!(%error, "cannot read the tokens");
        }
    }

    /// Whether any valid token exists.
    pub(crate) async fn exist(&self) -> Result<bool, Error> {
        self.refresh(AGE_MAX).await?;
        Ok(!self.known().ids.is_empty())
    }

    /// Whether a token that was valid is still valid.
    pub(crate) async fn is_valid(&self, id: i64) -> bool {
        self.try_refresh(AGE_MAX).await;
        self.known().caller(id, Instant::now()).is_some()
    }

    /// Calls `close` with those of the tokens in use that are no longer valid, again and again. Never returns; safe to drop at any point.
    /// Nothing else is read in between: a stream must not outlive its token because another read waits.
    pub(crate) async fn close_streams(&self, used: impl Fn() -> HashSet<i64>, close: impl Fn(&HashSet<i64>)) {
        loop {
            let mut invalid = used();
            if !invalid.is_empty() {
                self.try_refresh(STREAM_AGE_MAX).await;
                let now = Instant::now();
                invalid.retain(|id| self.known().caller(*id, now).is_none());
                close(&invalid);
            }
            tokio::time::sleep(STREAMS_EVERY).await;
        }
    }

    /// The caller that a secret belongs to; `None`: the secret is not valid.
    pub(crate) async fn caller(&self, secret: &str) -> Option<Caller> {
        let hash = hash(secret);
        for (wait, age_max) in [(Duration::ZERO, AGE_MAX), (UNKNOWN_DELAY, UNKNOWN_DELAY)] {
            // Tokens that are younger than the wait were read after this call began.
            tokio::time::sleep(wait).await;
            self.try_refresh(age_max).await;
            let known = self.known();
            let id = known.ids.get(&hash);
            if let Some(caller) = id.and_then(|id| known.caller(*id, Instant::now())) {
                return Some(caller.clone());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_ends_within_two_seconds_after_its_token() {
        assert!(STREAM_AGE_MAX + STREAMS_EVERY < Duration::from_secs(2));
    }
}
