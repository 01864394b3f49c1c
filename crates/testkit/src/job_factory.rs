//! Jobs for tests: every column has a default, and a test sets only what matters to it.

use anyhow::Result;
use tokio_postgres::Client;

/// A job to insert as a row. It can be one that no enqueue would create: overdue, attempted before, crashed before.
#[must_use = "the job exists only once it is inserted"]
pub struct JobFactory<'a> {
    client: &'a Client,
    kind: String,
    queue: String,
    key: Option<String>,
    lane: Option<String>,
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
            lane: None,
            payload: "{}".to_owned(),
            due_in_ms: 0,
            priority: 0,
            attempt: 0,
            max_attempts: 20,
            crashes: 0,
        }
    }

    /// The kind; `test` by default.
    pub fn kind(mut self, kind: &str) -> Self {
        self.kind = kind.to_owned();
        self
    }

    /// The queue; `default` by default.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = queue.to_owned();
        self
    }

    /// The key; none by default.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// The lane as JSON text; none by default. The job is blocked until it is promoted.
    pub fn lane(mut self, json: &str) -> Self {
        self.lane = Some(json.to_owned());
        self
    }

    /// The payload as JSON text; `{}` by default.
    pub fn payload(mut self, json: &str) -> Self {
        self.payload = json.to_owned();
        self
    }

    /// How many milliseconds from now the job is due; negative if it is overdue.
    pub fn due_in_ms(mut self, ms: i64) -> Self {
        self.due_in_ms = ms;
        self
    }

    /// The priority, -9 to 9; higher ones run first.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// How many attempts were made, and how many are allowed.
    pub fn attempts(mut self, made: i32, max: i32) -> Self {
        (self.attempt, self.max_attempts) = (made, max);
        self
    }

    /// How many times its worker died while running it.
    pub fn crashes(mut self, crashes: i16) -> Self {
        self.crashes = crashes;
        self
    }

    /// Inserts the job; returns its id.
    pub async fn insert(self) -> Result<i64> {
        let sql = "
            insert into pitwheel.job
                (run_at, enqueued_at, kind, queue, key, payload, priority, attempt, max_attempts, crashes, lane)
            values (
                clock_timestamp() + $1 * interval '1 millisecond', clock_timestamp(),
                $2, $3, $4, $5::text::json, $6::smallint, $7, $8, $9, $10
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
                    &self.lane,
                ],
            )
            .await?;
        Ok(row.get(0))
    }
}
