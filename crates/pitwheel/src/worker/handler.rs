//! Running user code: whatever it does ends in an outcome and never ends the worker.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;

use crate::error::Error;
use crate::job::ending::{Cause, Failure, Outcome, Verdict};
use crate::job::new_job::{History, Job, check_name};
use crate::worker::context::Context;

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Call = Box<dyn Fn(&str, Context) -> Running + Send + Sync>;

/// The handler of a kind, with its type erased.
pub(crate) struct Handler {
    call: Call,
    history: History,
}

/// The handlers of a worker, by kind.
#[derive(Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<&'static str, Arc<Handler>>,
}

impl Handlers {
    pub(crate) fn add<J, F, Fut, V, E>(&mut self, handler: F) -> Result<(), Error>
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Verdict>,
        E: Display,
    {
        check_name("kind", J::KIND)?;
        let call = move |payload: &str, context: Context| match serde_json::from_str::<J>(payload) {
            Ok(job) => run(handler(job, context)),
            Err(error) => mismatch(&error),
        };
        let handler = Handler { call: Box::new(call), history: J::HISTORY };
        match self.by_kind.insert(J::KIND, Arc::new(handler)) {
            None => Ok(()),
            Some(_) => Err(Error::Invalid(format!("kind `{}` has two handlers", J::KIND))),
        }
    }

    /// The handler of a kind, and what the kind's jobs leave in the history.
    pub(crate) fn get(&self, kind: &str) -> (Option<Arc<Handler>>, History) {
        let handler = self.by_kind.get(kind);
        (handler.cloned(), handler.map_or(History::All, |handler| handler.history))
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        self.by_kind.keys().map(|kind| (*kind).to_owned()).collect()
    }
}

impl Handler {
    /// Runs the handler to its outcome: an error, a panic, a timeout and a wrong payload are all outcomes.
    pub(crate) async fn run(&self, context: &Context) -> Outcome {
        let job = context.job();
        // Deserializing and creating the future are user code too, and may panic.
        let started =
            std::panic::catch_unwind(AssertUnwindSafe(|| (self.call)(&job.payload, context.clone())));
        let running = match started {
            Ok(running) => running,
            Err(panic) => return failed(Cause::Panic, panic_message(panic.as_ref())),
        };
        // At the timeout the future is dropped, which is user code too: inside, so that its panic is caught.
        let limited = async move {
            match job.timeout {
                None => running.await,
                Some(limit) => tokio::time::timeout(limit, running)
                    .await
                    .unwrap_or_else(|_| failed(Cause::Timeout, format!("no end after {limit:?}"))),
            }
        };
        match AssertUnwindSafe(limited).catch_unwind().await {
            Ok(Outcome::Verdict(Verdict::Complete(completion))) => match context.complete(completion) {
                Ok(completion) => Outcome::Verdict(completion.into()),
                Err(error) => failed(Cause::Error, format!("a follower cannot be enqueued: {error}")),
            },
            Ok(outcome) => outcome,
            Err(panic) => failed(Cause::Panic, panic_message(panic.as_ref())),
        }
    }
}

fn run<V: Into<Verdict>, E: Display>(
    handler: impl Future<Output = Result<V, E>> + Send + 'static,
) -> Running {
    Box::pin(async move {
        match handler.await {
            Ok(verdict) => Outcome::Verdict(verdict.into()),
            // The alternate form, because anyhow prints the causes only there.
            Err(error) => failed(Cause::Error, format!("{error:#}")),
        }
    })
}

fn mismatch(error: &serde_json::Error) -> Running {
    let message = format!("the payload does not fit the handler's type: {}", without_values(error));
    Box::pin(std::future::ready(failed(Cause::Payload, message)))
}

/// What an error says about the handler's type and about the place in the payload, without values of the payload: error
/// messages are shown to people who may not see payloads.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The name of the field is that of the type.
    if text.starts_with("missing field `") {
        return text;
    }
    let quotes =
        ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant `", "unknown field `"];
    let expected =
        text.rsplit_once(", expected ").filter(|_| quotes.iter().any(|quote| text.starts_with(quote)));
    match expected {
        Some((_, expected)) => format!("expected {expected}"),
        None => format!("the problem is at line {} column {}", error.line(), error.column()),
    }
}

fn failed(cause: Cause, message: String) -> Outcome {
    Outcome::Failed(Failure { cause, message })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its deserialization is tested")]
    struct Payment {
        amount: u32,
        currency: Currency,
    }

    #[derive(Debug, Deserialize)]
    enum Currency {
        Eur,
        Usd,
    }

    #[test]
    fn an_error_about_a_payload_does_not_quote_it() {
        for (payload, shown) in [
            (r#"{"amount":"card 4111, expected 4111"}"#, "expected u32 at line 1 column 36"),
            (r#"{"amount":-4111}"#, "expected u32 at line 1 column 15"),
            (r#"{"amount":1,"currency":"4111"}"#, "expected `Eur` or `Usd` at line 1 column 29"),
            (r#"{"4111":1}"#, "expected `amount` or `currency` at line 1 column 7"),
            (r#"{"amount":1}"#, "missing field `currency` at line 1 column 12"),
            (r#"{"amount":1,"amount":4111}"#, "the problem is at line 1 column 20"),
        ] {
            let error = serde_json::from_str::<Payment>(payload).expect_err("it does not fit");
            assert_eq!(without_values(&error), shown, "{error}");
        }
    }
}
