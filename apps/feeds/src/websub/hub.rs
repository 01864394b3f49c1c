//! Requests to a hub.

use ring::rand::{SecureRandom, SystemRandom};
use url::Url;

use crate::error::Error;
use crate::fetch::{Client, FetchError};
use crate::store::websub::HubRequest;
use crate::websub::callback::PUBLIC_PREFIX;

/// How long subscriptions are asked for: ten days, as the specification suggests. The hub decides.
const LEASE_SECONDS: &str = "864000";

/// Asks a hub for a subscription, or for its end. The hub calls back to ask whether this is wanted.
pub(crate) async fn ask(
    client: &Client,
    request: &HubRequest,
    public_url: &str,
    subscribe: bool,
) -> Result<(), Error> {
    let hub = Url::parse(&request.hub_url).map_err(|_| FetchError::Url(request.hub_url.clone()))?;
    let callback = format!("{}{PUBLIC_PREFIX}{}", public_url.trim_end_matches('/'), request.token);
    let mut form = vec![
        ("hub.callback", callback.as_str()),
        ("hub.mode", if subscribe { "subscribe" } else { "unsubscribe" }),
        ("hub.topic", &request.topic_url),
    ];
    if subscribe {
        form.extend([("hub.lease_seconds", LEASE_SECONDS), ("hub.secret", request.secret.as_str())]);
    }
    let answer = client.post_form(&hub, &form).await?;
    if !answer.status.is_success() {
        return Err(Error::Invalid(format!("the hub `{hub}` answered {}", answer.status)));
    }
    Ok(())
}

/// 32 random bytes as text: a token or a secret.
pub(crate) fn random_text() -> Result<String, Error> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::Invalid("the system has no random numbers".into()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
