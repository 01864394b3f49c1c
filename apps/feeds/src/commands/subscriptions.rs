//! `pitwheel-feeds subscribe` and `unsubscribe`.

use clap::Args;
use pitwheel_feeds::Feeds;
use serde_json::json;

use pitwheel_app::output::{OutputFormat, UsageError, print_json, print_message};

#[derive(Debug, Args)]
pub(crate) struct SubscriptionArgs {
    /// The URL of the feed
    feed: String,
    /// Who subscribes: any name
    subscriber: String,
}

pub(crate) async fn subscribe(
    feeds: &Feeds,
    args: SubscriptionArgs,
    output: OutputFormat,
) -> anyhow::Result<()> {
    let subscribed = feeds.subscribe(&args.feed, &args.subscriber).await?;
    if output == OutputFormat::Json {
        print_json(&json!({
            "source_id": subscribed.source_id, "subscriber": args.subscriber, "is_new": subscribed.is_new
        }))?;
    } else {
        let what = if subscribed.is_new { "subscribes" } else { "subscribes already" };
        print_message(&format!("`{}` {what} to source {}", args.subscriber, subscribed.source_id));
    }
    Ok(())
}

pub(crate) async fn unsubscribe(feeds: &Feeds, args: SubscriptionArgs) -> anyhow::Result<()> {
    let id = feeds.source_by_url(&args.feed).await?.id;
    if !feeds.unsubscribe(id, &args.subscriber).await? {
        return Err(UsageError(format!("`{}` does not subscribe to source {id}", args.subscriber)).into());
    }
    let others = feeds.source(id).await?.subscribers;
    print_message(&format!("`{}` left source {id}, which has {others} subscribers now", args.subscriber));
    Ok(())
}
