//! What the handlers share.

use std::sync::Arc;

use crate::feeds::Feeds;
use crate::fetch::Client;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) feeds: Feeds,
    pub(crate) client: Arc<Client>,
}
