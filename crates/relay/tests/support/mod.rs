//! What the tests with Kafka share: a load with a ledger, a consumer, and the order checker.

pub(crate) mod arrivals;
pub(crate) mod consumer;
pub(crate) mod holdings;
pub(crate) mod load;
pub(crate) mod topic;
