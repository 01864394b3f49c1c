//! `pitwheel-feeds sources`.

use clap::{Args, Subcommand};
use pitwheel_feeds::http::views::{FetchView, SourceView};
use pitwheel_feeds::{Feeds, NewSource, Source};
use serde_json::json;

use pitwheel_app::output::{OutputFormat, print, print_json, print_message, relative, table, visible};

#[derive(Debug, Subcommand)]
pub(crate) enum SourcesCommand {
    /// Add a source and enable it. If it is there, change the settings that are given.
    Add(AddArgs),
    /// List sources, oldest first.
    List {
        /// Only ids above this one: the last id of the previous page
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: i64,
        /// The number of lines, at most 1000
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: i64,
        /// Only the sources of this subscriber
        #[arg(long, value_name = "NAME")]
        subscriber: Option<String>,
    },
    /// Show a source and its last fetches.
    Show {
        /// Its id or URL
        source: String,
    },
    /// Enable a source.
    Enable {
        /// Its id or URL
        source: String,
    },
    /// Disable a source. A fetch in progress finishes.
    Disable {
        /// Its id or URL
        source: String,
    },
    /// Remove a source with its articles and subscriptions.
    Remove {
        /// Its id or URL
        source: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The URL of the feed; with --discover, also of a page that names it
    url: String,
    /// The name
    #[arg(long)]
    name: Option<String>,
    /// The category
    #[arg(long)]
    category: Option<String>,
    /// From -9 to 9; higher is fetched first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,
    /// Minutes between two fetches, 1 to 10080
    #[arg(long, value_name = "MINUTES")]
    every: Option<i32>,
    /// Fetch the URL first, and add the feeds that it names
    #[arg(long)]
    discover: bool,
    /// With --discover: fetch from addresses that are not public too
    #[arg(long)]
    allow_private_addresses: bool,
}

/// The source with this id or URL.
async fn find(feeds: &Feeds, source: &str) -> Result<Source, pitwheel_feeds::Error> {
    match source.parse() {
        Ok(id) => feeds.source(id).await,
        Err(_) => feeds.source_by_url(source).await,
    }
}

pub(crate) async fn run(feeds: &Feeds, command: SourcesCommand, output: OutputFormat) -> anyhow::Result<()> {
    match command {
        SourcesCommand::Add(args) => add(feeds, args, output).await?,
        SourcesCommand::List { after, limit, subscriber } => {
            list(feeds.sources(after, limit, subscriber.as_deref()).await?, output)?;
        }
        SourcesCommand::Show { source } => show(feeds, find(feeds, &source).await?, output).await?,
        SourcesCommand::Enable { source } => {
            let id = find(feeds, &source).await?.id;
            feeds.enable(id).await?;
            print_message(&format!("source {id} is enabled"));
        }
        SourcesCommand::Disable { source } => {
            let id = find(feeds, &source).await?.id;
            feeds.disable(id).await?;
            print_message(&format!("source {id} is disabled"));
        }
        SourcesCommand::Remove { source } => {
            let id = find(feeds, &source).await?.id;
            feeds.remove(id).await?;
            print_message(&format!("source {id} is removed"));
        }
    }
    Ok(())
}

async fn add(feeds: &Feeds, args: AddArgs, output: OutputFormat) -> anyhow::Result<()> {
    let urls = if args.discover { discovered(&args).await? } else { vec![args.url.clone()] };
    for url in urls {
        let new = NewSource {
            url,
            name: args.name.clone(),
            category: args.category.clone(),
            priority: args.priority,
            fetch_interval_minutes: args.every,
        };
        let (id, added) = feeds.add_source(&new).await?;
        if output == OutputFormat::Json {
            print_json(&SourceView::from(feeds.source(id).await?))?;
        } else {
            let what = if added { "added" } else { "there already, and enabled" };
            print_message(&format!("source {id} is {what}: {}", new.url));
        }
    }
    Ok(())
}

async fn discovered(args: &AddArgs) -> anyhow::Result<Vec<String>> {
    let mut options = pitwheel_feeds::fetch::Options::default();
    options.allow_private = args.allow_private_addresses;
    let client = pitwheel_feeds::fetch::Client::new(options)?;
    let url = args.url.parse()?;
    let found = pitwheel_feeds::discover::discover(&client, &url).await?;
    anyhow::ensure!(!found.is_empty(), "`{url}` is no feed and names none: give the URL of the feed");
    Ok(found.into_iter().map(|feed| feed.url).collect())
}

fn list(sources: Vec<Source>, output: OutputFormat) -> anyhow::Result<()> {
    if output == OutputFormat::Json {
        return print_json(&sources.into_iter().map(SourceView::from).collect::<Vec<_>>());
    }
    if sources.is_empty() {
        print_message("no sources: add one with `pitwheel-feeds sources add URL`");
        return Ok(());
    }
    let rows = sources.iter().map(|source| {
        let next = match (&source.disabled_because, source.next_fetch_at) {
            (Some(why), _) => format!("disabled: {why}"),
            (None, Some(at)) => relative(at),
            (None, None) => String::new(),
        };
        let last = source.last_fetched_at.map(relative).unwrap_or_default();
        let failures = source.consecutive_failures;
        vec![
            source.id.to_string(),
            source.name.clone(),
            source.category.clone().unwrap_or_default(),
            source.subscribers.to_string(),
            last,
            next,
            if failures > 0 { failures.to_string() } else { String::new() },
        ]
    });
    Ok(print(&table(&["ID", "NAME", "CATEGORY", "SUBSCRIBERS", "FETCHED", "NEXT", "FAILURES"], rows))?)
}

async fn show(feeds: &Feeds, source: Source, output: OutputFormat) -> anyhow::Result<()> {
    let fetches = feeds.fetches(source.id, None, 10).await?;
    if output == OutputFormat::Json {
        let fetches: Vec<FetchView> = fetches.into_iter().map(FetchView::from).collect();
        return print_json(&json!({ "source": SourceView::from(source), "fetches": fetches }));
    }
    let reason = source.next_fetch_reason.as_deref().unwrap_or_default();
    let next = match &source.disabled_because {
        Some(why) => format!("disabled: {why}"),
        None => format!("{}, because: {reason}", source.next_fetch_at.map(relative).unwrap_or_default()),
    };
    let push =
        source.push_until.map_or_else(|| "no".to_owned(), |until| format!("expires {}", relative(until)));
    print(&format!(
        "source {}  {}\n  url          {}\n  priority     {}\n  every        {} minutes\n  fetched      {}\n  next         {next}\n  failures     {}  {}\n  subscribers  {}\n  push         {push}\n",
        source.id,
        visible(&source.name),
        visible(&source.url),
        source.priority,
        source.fetch_interval_minutes,
        source.last_fetched_at.map_or_else(|| "never".to_owned(), relative),
        source.consecutive_failures,
        visible(source.last_error.as_deref().unwrap_or_default()),
        source.subscribers,
    ))?;
    let rows = fetches.iter().map(|fetch| {
        vec![
            relative(fetch.fetched_at),
            if fetch.is_push {
                "push".to_owned()
            } else {
                fetch.status.map_or_else(|| "-".into(), |s| s.to_string())
            },
            format!("{} ms", fetch.duration_ms),
            fetch.articles_new.to_string(),
            fetch.error.clone().unwrap_or_default(),
        ]
    });
    Ok(print(&table(&["FETCH", "STATUS", "TIME", "NEW", "ERROR"], rows))?)
}
