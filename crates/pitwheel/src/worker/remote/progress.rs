//! Reporting the progress of jobs.
//!
//! Notes never wait in a queue. While the server is away or slow, the last note of each job stays with its handler, however many the handler
//! reports. The last one is also part of the result of the job (`stream.rs`), so a result loses none and need not wait for one.

use std::time::Duration;

use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use tonic::Code;

use crate::job::limits::SETTLE_MAX;
use crate::worker::context::Context;
use crate::worker::remote::core::{Remote, with_deadline};
use crate::worker::remote::message::result;

/// How often progress is reported.
const EVERY: Duration = Duration::from_secs(1);

/// Reports progress until it is dropped, one call at a time.
pub(super) async fn report_progress(remote: &Remote) {
    loop {
        tokio::time::sleep(EVERY).await;
        remote.report_new_progress().await;
    }
}

impl Remote {
    /// Reports what handlers have reported since the last call, and what could not be reported then.
    async fn report_new_progress(&self) {
        for notes in self.new_progress().chunks(SETTLE_MAX) {
            let results = notes.iter().map(|(_, note)| note.clone()).collect();
            let request = with_deadline(v1::ReportResultRequest { results });
            let Err(status) = self.client().report_result(request).await else { continue };
            tracing::warn!(error = %status.message(), worker = self.name, jobs = notes.len(), "cannot report progress");
            // What the server refuses once it refuses again.
            if !matches!(status.code(), Code::InvalidArgument | Code::OutOfRange) {
                notes.iter().for_each(|(context, _)| context.last_progress().put_back());
            }
        }
    }

    /// The new progress of each job that runs. A handler that settles its job itself writes that, too.
    fn new_progress(&self) -> Vec<(Context, v1::Result)> {
        let state = self.state();
        let held = state.held.iter();
        let running = held.filter(|(_, held)| !held.ended && !held.context.was_settled_by_handler());
        let new = running.filter_map(|(claim, held)| {
            let (fraction, note) = held.context.last_progress().take()?;
            let progress = Outcome::Progress(v1::Progress { fraction, note });
            Some((held.context.clone(), result(*claim, progress)))
        });
        new.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::net::TcpListener;

    use super::*;
    use crate::job::new_job::History;
    use crate::worker::handler::Handlers;
    use crate::worker::remote::core::Held;
    use crate::worker::remote::message::claimed;
    use crate::worker::remote::server::Address;

    const JOBS: i64 = 3;

    #[tokio::test]
    async fn while_the_server_is_away_only_the_last_note_of_each_job_waits() -> anyhow::Result<()> {
        // The port is free again when the listener is dropped, so connections to it are refused.
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let address = Address::new(&format!("http://127.0.0.1:{port}"))?;
        let remote = Remote::new(&address, "test".into(), Handlers::default());
        let contexts: Vec<Context> = (1..=JOBS).map(|id| hold(&remote, id)).collect();

        for n in 0..50 {
            for context in &contexts {
                context.progress(n as f32 / 100.0, format!("note {n}"));
            }
            remote.report_new_progress().await;
        }

        remote.results.close();
        assert_eq!(remote.results.next().await, None, "notes wait in the queue of results");
        let mut waiting: Vec<(i64, Option<Outcome>)> =
            remote.new_progress().into_iter().map(|(context, note)| (context.id(), note.outcome)).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        let last = || Outcome::Progress(v1::Progress { fraction: 0.49, note: "note 49".into() });
        assert_eq!(waiting, (1..=JOBS).map(|id| (id, Some(last()))).collect::<Vec<_>>());
        Ok(())
    }

    /// A job that runs until the end of the test.
    fn hold(remote: &Remote, id: i64) -> Context {
        let job = claimed(1, v1::Assignment { job_id: id, fence: 1, ..v1::Assignment::default() });
        let claim = job.claim;
        let context = Context::new(remote.backend.clone(), job, History::All);
        let task = tokio::spawn(pending::<()>()).abort_handle();
        let held = Held { worker: 1, context: context.clone(), task, ended: false };
        remote.state().held.insert(claim, held);
        context
    }
}
