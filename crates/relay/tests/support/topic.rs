//! Topics of a broker.

use std::time::Duration;

use anyhow::{Result, anyhow};
use pitwheel_testkit::block_until;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

/// Few enough that consumers start fast, more than one so that entities are spread.
pub(crate) const PARTITIONS: i32 = 6;

/// Creates a topic with these settings.
pub(crate) async fn create(address: &str, name: &str, settings: &[(&str, &str)]) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", address).create()?;
    let mut topic = NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1));
    for (name, value) in settings {
        topic = topic.set(name, value);
    }
    let results = admin.create_topics([&topic], &AdminOptions::new()).await?;
    results
        .into_iter()
        .try_for_each(|result| result.map(drop).map_err(|(name, code)| anyhow!("{name}: {code}")))?;
    block_until("all partitions of the topic have a leader", || {
        let metadata = admin.inner().fetch_metadata(Some(name), Duration::from_secs(10));
        metadata.is_ok_and(|metadata| {
            let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            partitions.filter(|partition| partition.leader() >= 0).count() == PARTITIONS as usize
        })
    })
}
