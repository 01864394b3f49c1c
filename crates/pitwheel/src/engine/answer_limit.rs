//! How long a statement of a loop waits for its answer.

use std::time::Duration;

/// A statement may take this long, whatever the last one took.
const LONGEST: Duration = Duration::from_secs(30);

/// Twice as long as the last statement took, because the database may be slow; but not much longer, because the connection may be broken
/// without notice, and the loop waits. Doubled after each one without an answer.
#[derive(Debug)]
pub struct AnswerLimit {
    shortest: Duration,
    limit: Duration,
}

impl AnswerLimit {
    /// At least this long.
    pub fn new(shortest: Duration) -> AnswerLimit {
        AnswerLimit { shortest, limit: shortest }
    }

    /// How long the next statement waits.
    pub fn get(&self) -> Duration {
        self.limit
    }

    /// A statement was answered after this time.
    pub fn answered(&mut self, took: Duration) {
        self.limit = (2 * took).clamp(self.shortest, LONGEST);
    }

    /// A statement has failed that waited at most this long.
    pub fn failed(&mut self, waited: Duration) {
        self.limit = (2 * waited).clamp(self.shortest, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_follows_a_slow_database_and_falls_again() {
        let seconds = Duration::from_secs;
        let mut limit = AnswerLimit::new(seconds(3));
        assert_eq!(limit.get(), seconds(3));
        limit.failed(limit.get());
        limit.failed(limit.get());
        assert_eq!(limit.get(), seconds(12));
        limit.answered(seconds(8));
        assert_eq!(limit.get(), seconds(16));
        limit.failed(seconds(25));
        assert_eq!(limit.get(), seconds(30));
        limit.answered(Duration::from_millis(1));
        assert_eq!(limit.get(), seconds(3));
    }
}
