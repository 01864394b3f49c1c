//! Subscriptions of sources at their WebSub hubs.

use deadpool_postgres::Transaction;
use pitwheel::transaction::tokio_postgres as engine;
use tokio_postgres::Row;

use crate::error::Error;
use crate::kinds::SubscribeWebsub;

/// What a request to a hub needs.
pub(crate) struct HubRequest {
    pub(crate) hub_url: String,
    pub(crate) topic_url: String,
    pub(crate) token: String,
    pub(crate) secret: String,
}

impl HubRequest {
    pub(crate) fn read(row: &Row) -> HubRequest {
        HubRequest {
            hub_url: row.get("hub_url"),
            topic_url: row.get("topic_url"),
            token: row.get("token"),
            secret: row.get("secret"),
        }
    }
}

/// The subscription that a callback belongs to.
pub(crate) struct Callback {
    pub(crate) source_id: i64,
    pub(crate) wanted: bool,
    pub(crate) topic_url: String,
    pub(crate) secret: String,
    pub(crate) url: String,
}

impl Callback {
    pub(crate) fn read(row: &Row) -> Callback {
        Callback {
            source_id: row.get("source_id"),
            wanted: row.get("wanted"),
            topic_url: row.get("topic_url"),
            secret: row.get("secret"),
            url: row.get("url"),
        }
    }
}

/// The subscription of a source at a hub is to end. A job tells the hub.
pub(crate) async fn end(transaction: &Transaction<'_>, source_id: i64) -> Result<(), Error> {
    let statement = transaction.prepare_cached(include_str!("../../sql/websub_end.sql")).await?;
    if transaction.query_opt(&statement, &[&source_id]).await?.is_some() {
        let job = SubscribeWebsub { source_id, subscribe: false }.into_job();
        engine::enqueue(transaction, [job]).await?;
    }
    Ok(())
}
