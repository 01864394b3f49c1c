//! The handlers beside the fetches: subscriptions at hubs, and old history.

use pitwheel::{Context, Verdict};

use crate::error::Error;
use crate::feeds::Feeds;
use crate::fetch::Client;
use crate::kinds::{RenewWebsub, SubscribeWebsub};
use crate::store::websub::HubRequest;
use crate::websub::hub;

/// How many batches of old fetches are deleted at a time; the rest is deleted the next day.
const PRUNE_BATCHES: usize = 100;

/// What the handlers share.
pub(crate) struct Upkeep {
    pub(crate) feeds: Feeds,
    pub(crate) client: Client,
    /// Where hubs reach this server; `None`: hubs are not used.
    pub(crate) public_url: Option<String>,
}

impl Upkeep {
    /// Asks the hub of a source for a subscription, or for its end. The subscription is noted first: the hub may ask whether it is
    /// wanted before it answers.
    pub(crate) async fn subscribe(&self, job: SubscribeWebsub) -> Result<Verdict, Error> {
        let Some(public_url) = &self.public_url else { return Ok(Verdict::complete().into()) };
        let rows = if job.subscribe {
            let (token, secret) = (hub::random_text()?, hub::random_text()?);
            let sql = include_str!("../../sql/websub_want.sql");
            self.feeds.rows(sql, &[&job.source_id, &true, &token, &secret]).await?
        } else {
            self.feeds.rows(include_str!("../../sql/websub_end.sql"), &[&job.source_id]).await?
        };
        // The source was disabled or names no hub any more, or there is no subscription to end.
        let Some(request) = rows.first().map(HubRequest::read) else { return Ok(Verdict::complete().into()) };
        hub::ask(&self.client, &request, public_url, job.subscribe).await?;
        Ok(Verdict::complete().into())
    }

    /// Deletes old fetches, and enqueues a job for each hub that is to be asked today.
    pub(crate) async fn renew(&self, _: RenewWebsub, context: Context) -> Result<Verdict, Error> {
        for _ in 0..PRUNE_BATCHES {
            let client = self.feeds.client().await?;
            if client.execute(include_str!("../../sql/prune_fetches.sql"), &[]).await? == 0 {
                break;
            }
        }
        if self.public_url.is_none() {
            return Ok(Verdict::complete().into());
        }
        let rows = self.feeds.rows(include_str!("../../sql/websub_expiring.sql"), &[]).await?;
        let jobs = rows.iter().map(|row| {
            SubscribeWebsub { source_id: row.get("source_id"), subscribe: row.get("renew") }.into_job()
        });
        context.enqueue_many(jobs.collect::<Vec<_>>()).await?;
        Ok(Verdict::complete().into())
    }
}
