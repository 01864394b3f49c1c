//! `pitwheel-feeds articles`.

use clap::Subcommand;
use pitwheel_feeds::Feeds;
use pitwheel_feeds::http::views::ArticleView;

use pitwheel_app::output::{OutputFormat, print, print_json, print_message, relative, table};

#[derive(Debug, Subcommand)]
pub(crate) enum ArticlesCommand {
    /// List articles, newest first.
    List {
        /// Only ids below this one: the last id of the previous page
        #[arg(long, value_name = "ID")]
        before: Option<i64>,
        /// The number of lines, at most 1000
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: i64,
        /// Only articles of this source
        #[arg(long, value_name = "ID")]
        source: Option<i64>,
        /// Only articles of the sources of this subscriber
        #[arg(long, value_name = "NAME")]
        subscriber: Option<String>,
    },
}

pub(crate) async fn run(feeds: &Feeds, command: ArticlesCommand, output: OutputFormat) -> anyhow::Result<()> {
    let ArticlesCommand::List { before, limit, source, subscriber } = command;
    let articles = feeds.articles(before, limit, source, subscriber.as_deref()).await?;
    if output == OutputFormat::Json {
        print_json(&articles.into_iter().map(ArticleView::from).collect::<Vec<_>>())?;
    } else if articles.is_empty() {
        print_message("no articles: subscribe to a feed, then run `pitwheel-feeds fetch-due`");
    } else {
        let rows = articles.iter().map(|article| {
            let title = article.title.as_ref().or(article.url.as_ref()).cloned().unwrap_or_default();
            vec![article.id.to_string(), relative(article.found_at), article.source.clone(), title]
        });
        print(&table(&["ID", "FOUND", "SOURCE", "TITLE"], rows))?;
    }
    Ok(())
}
