//! Claims one job by its id, for a worker whose stream is open here.

use std::sync::Arc;
use std::time::Duration;

use pitwheel::Error;
use pitwheel::engine::{Session, claim_by_id};

use crate::dispatch::node::Node;
use crate::dispatch::not_claimed::NotClaimed;

/// How long such a claim may take. Others of the group wait for it, and the connection may be broken without notice.
const CLAIM_MAX: Duration = Duration::from_secs(5);

impl Node {
    /// Claims this job for a worker, also before its time, and sends it. `actor` is the person who asked for it; `None`: the worker.
    ///
    /// Safe to cancel: the claim goes on in a task of the node, because a job whose claim is not read would stay held.
    pub(crate) async fn claim_job(
        self: &Arc<Node>,
        worker: i64,
        id: i64,
        actor: Option<String>,
    ) -> Result<Result<(), NotClaimed>, Error> {
        let node = self.clone();
        let claim = self.spawn_claim(async move { node.claim_and_send(worker, id, actor.as_deref()).await });
        claim.await.unwrap_or(Ok(Err(NotClaimed::NoStream)))
    }

    async fn claim_and_send(
        &self,
        worker: i64,
        id: i64,
        actor: Option<&str>,
    ) -> Result<Result<(), NotClaimed>, Error> {
        let group = self.streams.lock().group_of(worker);
        let Some(group) = group else { return Ok(Err(NotClaimed::NoStream)) };
        let _claiming = group.claiming_by_id.lock().await;
        let reserved = self.streams.lock().reserve_slot(worker);
        if let Err(problem) = reserved {
            return Ok(Err(problem));
        }
        let kinds = &group.kinds;
        let claiming = async |client: Arc<Session>| claim_by_id(&*client, worker, id, kinds, actor).await;
        let claimed = self.pool.run_within(CLAIM_MAX, claiming).await;
        match claimed {
            Ok(Ok(job)) => {
                let unsent = self.streams.lock().send(vec![job]);
                let is_sent = unsent.is_empty();
                self.release(unsent);
                Ok(if is_sent { Ok(()) } else { Err(NotClaimed::NoStream) })
            }
            Ok(Err(refusal)) => {
                self.streams.lock().unreserve(&[worker], &[]);
                Ok(Err(NotClaimed::Refused(refusal)))
            }
            Err(error @ Error::NotFound(..)) => {
                self.streams.lock().unreserve(&[worker], &[]);
                Err(error)
            }
            Err(error) => {
                // The claim may have been committed. The worker opens a new stream, and what it did not get from this one is released.
                self.streams.lock().close(worker);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Result;
    use pitwheel_testkit::TestDb;

    use super::*;
    use crate::dispatch::node::tests::{SLEEP, node, worker};
    use crate::dispatch::stream::StreamOptions;

    #[tokio::test]
    async fn a_claim_that_has_no_answer_delays_others_for_seconds_only() -> Result<()> {
        let db = TestDb::new().await?;
        let node = node(&db)?;
        let id = db.job().kind("work").insert().await?;
        let place = node.streams.take_place(None).expect("there is room");
        let options = StreamOptions { slots: 1, ..StreamOptions::default() };
        let (worker, _messages) = node.open(place, worker(), options).await?;
        db.client().await?.batch_execute(SLEEP).await?;
        let claimed = tokio::time::timeout(3 * CLAIM_MAX, node.claim_job(worker, id, None)).await?;
        assert!(claimed.is_err(), "whether it was claimed is not known");
        assert_eq!(node.streams.lock().len(), 0, "the worker opens a new stream");
        node.finish().await;
        Ok(())
    }
}
