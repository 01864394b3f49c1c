//! A webhook: one signed HTTP request for each event.

mod connection;
mod request;
mod sink;
mod tls;

pub use sink::{Webhook, WebhookSettings};
