//! The relay and its sinks, with a real Kafka broker, with librdkafka's mock cluster, and with a webhook.

mod kafka;
mod mock;
mod outages;
mod postponed;
mod secured;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;
mod unreadable;
mod webhook;
