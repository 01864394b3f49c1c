//! Jobs for tests: every column has a default, a test names what matters to it.

use anyhow::Result;
use tokio_postgres::Client;

/// A job to insert as a row, also one that no enqueue would make: overdue, tried before, crashed before.
#[must_use = "a job is there once it is inserted"]
pub struct JobFactory<'a> {
    client: &'a Client,
    kind: String,
    queue: String,
    key: Option<String>,
    payload: String,
    due_in_ms: i64,
    priority: i16,
    attempt: i32,
    max_attempts: i32,
    crashes: i16,
}

impl<'a> JobFactory<'a> {
    pub(crate) fn new(client: &'a Client) -> JobFactory<'a> {
        JobFactory {
            client,
            kind: "test".to_owned(),
            queue: "default".to_owned(),
            key: None,
            payload: "{}".to_owned(),
            due_in_ms: 0,
            priority: 0,
            attempt: 0,
            max_attempts: 20,
            crashes: 0,
        }
    }

    /// What picks its handler; `test` otherwise.
    pub fn kind(mut self, kind: &str) -> Self {
        self.kind = kind.to_owned();
        self
    }

    /// Where it waits; `default` otherwise.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = queue.to_owned();
        self
    }

    /// Its identity; none otherwise.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// JSON text; `{}` otherwise.
    pub fn payload(mut self, json: &str) -> Self {
        self.payload = json.to_owned();
        self
    }

    /// How far from now it is due; negative: overdue.
    pub fn due_in_ms(mut self, ms: i64) -> Self {
        self.due_in_ms = ms;
        self
    }

    /// -9 to 9, higher first.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// How often it was attempted, and how often it may be.
    pub fn attempts(mut self, made: i32, max: i32) -> Self {
        (self.attempt, self.max_attempts) = (made, max);
        self
    }

    /// How often its worker died under it.
    pub fn crashes(mut self, crashes: i16) -> Self {
        self.crashes = crashes;
        self
    }

    /// Inserts it and gives back its id.
    pub async fn insert(self) -> Result<i64> {
        let sql = "
            insert into pitwheel.job
                (run_at, enqueued_at, kind, queue, key, payload, priority, attempt, max_attempts, crashes)
            values (
                clock_timestamp() + $1 * interval '1 millisecond', clock_timestamp(),
                $2, $3, $4, $5::text::json, $6::smallint, $7, $8, $9
            )
            returning id";
        let row = self
            .client
            .query_one(
                sql,
                &[
                    &(self.due_in_ms as f64),
                    &self.kind,
                    &self.queue,
                    &self.key,
                    &self.payload,
                    &self.priority,
                    &self.attempt,
                    &self.max_attempts,
                    &self.crashes,
                ],
            )
            .await?;
        Ok(row.get(0))
    }
}
