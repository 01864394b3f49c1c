//! Claims one job by its id, for a worker whose stream is open here.

use std::sync::Arc;

use pitwheel::Error;
use pitwheel::engine::claim_by_id;

use crate::dispatch::node::Node;
use crate::dispatch::not_claimed::NotClaimed;

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
        let claimed =
            self.pool.run(async |client| claim_by_id(&*client, worker, id, kinds, actor).await).await;
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
