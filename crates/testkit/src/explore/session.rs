//! A session of an exploration: a name and its steps.

use std::pin::Pin;

use anyhow::Result;

use crate::explore::connection::Connection;

/// One session: a name and its steps.
#[must_use = "a session does nothing until it is explored"]
pub struct Session {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

impl Session {
    /// A session without steps.
    pub fn new(name: &'static str) -> Session {
        Session { name, steps: Vec::new() }
    }

    /// `begin`, one call, `commit`: what the call locks stays locked until the commit is scheduled.
    pub fn transaction<F>(name: &'static str, label: &'static str, call: F) -> Session
    where
        F: AsyncFn(&mut Connection) -> Result<String> + 'static,
    {
        Session::new(name).sql("begin").step(label, call).sql("commit")
    }

    /// Adds a statement. Its label in a schedule is its first word.
    pub fn sql(self, sql: &'static str) -> Session {
        let label = sql.split_whitespace().next().unwrap_or_default();
        self.step(label, async move |connection| connection.query(sql).await)
    }

    /// Adds a statement under a label.
    pub fn sql_as(self, label: &'static str, sql: impl Into<String>) -> Session {
        let sql = sql.into();
        self.step(label, async move |connection| connection.query(&sql).await)
    }

    /// Adds a call. The text it returns is part of the run; an error rolls the session back and ends it.
    pub fn step<F>(mut self, label: &'static str, call: F) -> Session
    where
        F: AsyncFn(&mut Connection) -> Result<String> + 'static,
    {
        self.steps.push(Step::new(label, call));
        self
    }
}

/// One step: a label and a call.
pub(crate) struct Step {
    pub(crate) label: &'static str,
    call: Box<dyn Call>,
}

impl Step {
    pub(crate) fn new<F>(label: &'static str, call: F) -> Step
    where
        F: AsyncFn(&mut Connection) -> Result<String> + 'static,
    {
        Step { label, call: Box::new(call) }
    }

    /// Takes the step on the session's connection.
    pub(crate) async fn run(&self, connection: &mut Connection) -> Result<String> {
        self.call.call(connection).await
    }
}

/// An async closure behind a pointer: `AsyncFn` itself cannot be boxed.
trait Call {
    fn call<'a>(
        &'a self,
        connection: &'a mut Connection,
    ) -> Pin<Box<dyn Future<Output = Result<String>> + 'a>>;
}

impl<F: AsyncFn(&mut Connection) -> Result<String>> Call for F {
    fn call<'a>(
        &'a self,
        connection: &'a mut Connection,
    ) -> Pin<Box<dyn Future<Output = Result<String>> + 'a>> {
        Box::pin(self(connection))
    }
}
