//! Reporting results.

use std::time::{Duration, Instant};

use pitwheel_proto::{ERROR_CODE_HEADER, v1};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::engine::retry::RetryDelay;
use crate::job::claim::Claim;
use crate::worker::remote::core::{Remote, State, with_deadline};
use crate::worker::remote::message::{claim_of, refused, result_bytes};

/// How often results that were set aside are looked at: so often is one reported again whose job another transaction has locked.
const LATER: Duration = Duration::from_millis(200);
/// A smaller report is not refused for its size by anything between a worker and its server.
const LARGE: usize = 64 * 1024;
/// How gRPC describes the answer of a proxy that speaks HTTP only.
const HTTP_TOO_LARGE: [&str; 2] = ["mapped from HTTP status code 413", "receiving response with status: 413"];

/// Reports results until there will be no more.
pub(super) async fn report_results(remote: &Remote) {
    while let Some(batch) = remote.results.next().await {
        remote.report(batch).await;
    }
}

/// Reports results again that were set aside, until it is dropped.
pub(super) async fn report_set_aside(remote: &Remote) {
    loop {
        tokio::time::sleep(LATER).await;
        remote.bring_back();
    }
}

/// Reports what is left when the worker ends: results of locked jobs, until they are unlocked.
pub(super) async fn report_left(remote: &Remote) {
    while !remote.state().later.is_empty() {
        let due = remote.state().later.take_due(Instant::now());
        if !due.is_empty() {
            remote.report(due).await;
        }
        tokio::time::sleep(LATER).await;
    }
}

/// Whether this part will never be accepted as it is. What is too large is refused with `OUT_OF_RANGE` by our server and with
/// `RESOURCE_EXHAUSTED` by proxies; with the latter our server says that it is busy. A proxy that speaks HTTP only answers 413, which is
/// `UNKNOWN` here, or `INTERNAL` if the answer has a body, like other problems.
fn is_refused(status: &tonic::Status, part: &[v1::Result]) -> bool {
    let is_large = || part.iter().map(result_bytes).sum::<usize>() >= LARGE;
    let is_ours = || status.metadata().contains_key(ERROR_CODE_HEADER);
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => true,
        Code::ResourceExhausted => is_large() && !is_ours(),
        Code::Unknown | Code::Internal => {
            HTTP_TOO_LARGE.iter().any(|text| status.message().contains(text)) && is_large() && !is_ours()
        }
        _ => false,
    }
}

impl Remote {
    /// The attempt ended like this, unless it was released already.
    pub(super) fn end(&self, claim: Claim, result: v1::Result) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&claim).filter(|held| !held.ended) else { return };
        held.ended = true;
        // Before the lock is released: a shutdown that waits for this handler closes the queue.
        let _ = self.results.push([result]);
        drop(state);
        self.reported.notify_one();
    }

    /// Queues the results whose time has come. When the worker ends and the queue is closed, they are kept for [`report_left`].
    fn bring_back(&self) {
        let now = Instant::now();
        let due = self.state().later.take_due(now);
        if let Err(closed) = self.results.push(due) {
            self.state().later.add(closed, now);
        }
    }

    /// Reports until the server answers. A batch that the server refuses, or that is too large for it or for a proxy, is bisected
    /// until the result that is refused stands alone; that one is reported as failed later, so that the others need not wait.
    async fn report(&self, batch: Vec<v1::Result>) {
        let mut parts = vec![batch];
        let mut retry_delay = RetryDelay::default();
        let never = CancellationToken::new();
        while let Some(mut part) = parts.pop() {
            let request = with_deadline(v1::ReportResultRequest { results: part.clone() });
            match self.client().report_result(request).await {
                Ok(response) => {
                    retry_delay.reset();
                    self.reported(&part, &response.into_inner());
                }
                Err(status) if part.len() > 1 && is_refused(&status, &part) => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([part, rest]);
                }
                Err(status) if is_refused(&status, &part) => {
                    let mut state = self.state();
                    part.iter().for_each(|result| self.refused(&mut state, result, status.message()));
                }
                Err(status) => {
                    tracing::warn!(
                        error = %status.message(), worker = self.name, results = part.len(),
                        "cannot report, will try again"
                    );
                    retry_delay.wait(&never).await;
                    parts.push(part);
                }
            }
        }
    }

    /// The server refused a result. The attempt has failed, and that is reported later: it may be refused, too.
    fn refused(&self, state: &mut State, result: &v1::Result, problem: &str) {
        let Some(claim) = result.claim.as_ref().map(claim_of) else { return };
        tracing::warn!(job.id = claim.id, worker = self.name, problem, "the server refused a result");
        state.later.add_refused(claim, refused(result, problem), Instant::now());
    }

    /// Acts on the server's answer to each result. A refused one is reported as failed instead.
    fn reported(&self, batch: &[v1::Result], response: &v1::ReportResultResponse) {
        let mut state = self.state();
        for (at, (result, written)) in batch.iter().zip(&response.written).enumerate() {
            let Some(claim) = result.claim.as_ref().map(claim_of) else { continue };
            if *written == i32::from(v1::Written::Refused) {
                let problem = response.problems.get(at).map_or("it is invalid", String::as_str);
                self.refused(&mut state, result, problem);
                continue;
            }
            if *written == i32::from(v1::Written::Locked) {
                state.later.add([result.clone()], Instant::now());
                continue;
            }
            state.later.ended(claim);
            let Some(held) = state.held.remove(&claim) else { continue };
            let is_settled = [v1::Written::Yes, v1::Written::Already].map(i32::from).contains(written);
            if is_settled || held.context.was_settled_by_handler() {
                self.counters.settled(1);
            } else {
                self.counters.lost(1);
                tracing::warn!(
                    job.id = claim.id,
                    job.fence = claim.fence,
                    worker = self.name,
                    "lost: the job was given to another worker while it ran here, or this is a repeated report that the server does not remember"
                );
            }
        }
        drop(state);
        self.reported.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataValue;

    use super::*;

    fn completed(bytes: usize) -> v1::Result {
        let complete = v1::Complete { result: Some("x".repeat(bytes)), ..v1::Complete::default() };
        v1::Result { outcome: Some(v1::result::Outcome::Complete(complete)), ..v1::Result::default() }
    }

    #[test]
    fn a_busy_server_refuses_no_result() {
        let of_proxy = tonic::Status::resource_exhausted("larger than 4 MiB");
        assert!(is_refused(&of_proxy, &[completed(LARGE)]));
        assert!(!is_refused(&of_proxy, &[completed(10)]), "nothing refuses it for its size");
        let mut busy = tonic::Status::resource_exhausted("too many large requests are under way");
        busy.metadata_mut().insert(ERROR_CODE_HEADER, MetadataValue::from_static("busy"));
        assert!(!is_refused(&busy, &[completed(LARGE)]));
    }

    #[test]
    fn a_proxy_that_answers_413_refuses_what_is_large() {
        let mapped = |code: u16| {
            tonic::Status::unknown(format!("grpc-status header missing, mapped from HTTP status code {code}"))
        };
        let with_body = "protocol error: received message with invalid compression flag: 60 (valid flags are 0 and 1) \
                         while receiving response with status: 413 Payload Too Large";
        for too_large in [mapped(413), tonic::Status::internal(with_body)] {
            assert!(is_refused(&too_large, &[completed(LARGE)]));
            assert!(!is_refused(&too_large, &[completed(10)]), "nothing refuses it for its size");
        }
        assert!(!is_refused(&mapped(500), &[completed(LARGE)]));
    }
}
