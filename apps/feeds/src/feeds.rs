//! The handle through which a program uses the feeds.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use pitwheel::{Cadence, NewRecurring, Pitwheel};
use tokio_postgres::types::ToSql;

use crate::error::Error;
use crate::kinds::{RenewWebsub, UPKEEP_QUEUE};
use crate::opml::{Opml, Outline};
use crate::store::sources::{self, Locked};
use crate::store::{Disabled, FetchRecord, NewSource, SCHEMA, Source, StoredArticle, Topic};

/// Connections besides those of the engine.
const CONNECTIONS: usize = 8;
/// How often subscriptions at hubs are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(24 * 3600);
/// The longest page of a list.
pub const PAGE_MAX: i64 = 1000;

/// The feeds in a database that has the engine. Cheap to clone.
#[derive(Clone)]
pub struct Feeds {
    pitwheel: Pitwheel,
    pool: Pool,
    event_topic: Option<Topic>,
}

/// The result of a subscribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribed {
    /// The source.
    pub source_id: i64,
    /// Whether the subscription is new.
    pub is_new: bool,
}

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Sources that were added, or would be.
    pub added: u64,
    /// Sources that were there already.
    pub known: u64,
}

impl Feeds {
    /// Connects.
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub async fn connect(url: &str) -> Result<Feeds, Error> {
        let mut options = pitwheel::Options::default();
        options.application = "pitwheel-feeds".to_owned();
        let pitwheel = Pitwheel::connect_with(url, options).await?;
        Feeds::on(&pitwheel, url)
    }

    /// The feeds in a database that is connected already.
    ///
    /// # Errors
    /// If the URL cannot be used.
    pub fn on(pitwheel: &Pitwheel, url: &str) -> Result<Feeds, Error> {
        Ok(Feeds {
            pitwheel: pitwheel.clone(),
            pool: pitwheel_app::connect(url, "pitwheel-feeds", CONNECTIONS)?,
            event_topic: None,
        })
    }

    /// From now on, each new article has an event in the outbox, for this topic, written in the transaction that stores the article.
    #[must_use]
    pub fn with_events(mut self, topic: Topic) -> Feeds {
        self.event_topic = Some(topic);
        self
    }

    pub(crate) fn event_topic(&self) -> Option<&Topic> {
        self.event_topic.as_ref()
    }

    /// Brings the schemas of the engine and of the feeds up to this version, and creates the recurring job that renews
    /// subscriptions at hubs. Safe to call from every process at every start.
    ///
    /// # Errors
    /// If the database fails, or its schema is newer.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.pitwheel.migrate().await?;
        pitwheel_app::migrate(self.client().await?, &SCHEMA).await?;
        let renew = NewRecurring::of(&RenewWebsub {}, "all", Cadence::every(RENEW_EVERY)?);
        self.pitwheel.recurring().create(renew.queue(UPKEEP_QUEUE)).await?;
        Ok(())
    }

    /// The engine.
    pub fn pitwheel(&self) -> &Pitwheel {
        &self.pitwheel
    }

    pub(crate) async fn client(&self) -> Result<Object, Error> {
        Ok(self.pool.get().await?)
    }

    /// Rows of one statement.
    pub(crate) async fn rows(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let client = self.client().await?;
        let statement = client.prepare_cached(sql).await?;
        Ok(client.query(&statement, params).await?)
    }

    /// Adds a source and enables it. If there is one with this URL, changes the settings that are given, and enables it. True: it
    /// was added.
    ///
    /// # Errors
    /// If the URL or a setting cannot be used.
    pub async fn add_source(&self, new: &NewSource) -> Result<(i64, bool), Error> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let (mut source, added) = sources::find_or_add(&transaction, new).await?;
        sources::change(&transaction, &mut source, new).await?;
        if !source.is_enabled() {
            sources::enable(&transaction, &mut source).await?;
        }
        transaction.commit().await?;
        self.hint().await;
        Ok((source.id, added))
    }

    /// Adds the sources of a list that are not there yet, in order. `progress` is called after each.
    ///
    /// # Errors
    /// If the database fails; sources that were added before stay.
    pub async fn import(
        &self,
        opml: &Opml,
        dry_run: bool,
        mut progress: impl FnMut(u64),
    ) -> Result<Imported, Error> {
        let mut imported = Imported::default();
        for (done, outline) in (1..).zip(&opml.outlines) {
            let known =
                !self.rows(include_str!("../sql/source_by_url.sql"), &[&outline.url]).await?.is_empty();
            if known {
                imported.known += 1;
            } else {
                imported.added += 1;
                if !dry_run {
                    let (name, category) = (outline.name.clone(), outline.category.clone());
                    let new = NewSource { name, category, ..NewSource::new(&outline.url) };
                    self.add_source(&new).await?;
                }
            }
            progress(done);
        }
        Ok(imported)
    }

    /// All sources as a list for other readers.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn export(&self) -> Result<Vec<Outline>, Error> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = self.sources(after, PAGE_MAX, None).await?;
            let Some(last) = page.last() else { return Ok(all) };
            after = last.id;
            all.extend(page.into_iter().map(|source| Outline {
                name: Some(source.name),
                url: source.url,
                category: source.category,
            }));
        }
    }

    /// One page of sources, oldest first: ids above `after`, at most `limit`; with a subscriber, those that it has.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn sources(
        &self,
        after: i64,
        limit: i64,
        subscriber: Option<&str>,
    ) -> Result<Vec<Source>, Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let rows = self.rows(include_str!("../sql/sources.sql"), &[&after, &limit, &subscriber]).await?;
        Ok(rows.iter().map(Source::read).collect())
    }

    /// One source.
    ///
    /// # Errors
    /// [`Error::NoSource`] if there is none.
    pub async fn source(&self, id: i64) -> Result<Source, Error> {
        let rows = self.rows(include_str!("../sql/source.sql"), &[&id]).await?;
        rows.first().map(Source::read).ok_or_else(|| Error::NoSource(id.to_string()))
    }

    /// The source with this URL.
    ///
    /// # Errors
    /// [`Error::NoSource`] if there is none.
    pub async fn source_by_url(&self, url: &str) -> Result<Source, Error> {
        let url = NewSource::new(url).checked_url()?;
        let rows = self.rows(include_str!("../sql/source_by_url.sql"), &[&url]).await?;
        rows.first().map(Source::read).ok_or(Error::NoSource(url))
    }

    /// Enables a source: it is fetched at the time that was kept, or now if that has passed.
    ///
    /// # Errors
    /// [`Error::NoSource`] if there is none.
    pub async fn enable(&self, id: i64) -> Result<(), Error> {
        self.change(id, async |transaction, mut source| sources::enable(transaction, &mut source).await)
            .await?;
        self.hint().await;
        Ok(())
    }

    /// Disables a source. A fetch in progress finishes.
    ///
    /// # Errors
    /// [`Error::NoSource`] if there is none.
    pub async fn disable(&self, id: i64) -> Result<(), Error> {
        let disable = async |transaction: &deadpool_postgres::Transaction<'_>, source: Locked| {
            sources::disable(transaction, &source, Disabled::Operator).await
        };
        self.change(id, disable).await
    }

    /// Removes a source with its articles and subscriptions.
    ///
    /// # Errors
    /// [`Error::NoSource`] if there is none.
    pub async fn remove(&self, id: i64) -> Result<(), Error> {
        self.change(id, async |transaction, source| sources::remove(transaction, &source).await).await
    }

    /// Fetches a source now, whatever its next time is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is disabled.
    pub async fn fetch_now(&self, id: i64) -> Result<(), Error> {
        let why = "a person asked for it";
        let rows = self.rows(include_str!("../sql/next_fetch.sql"), &[&id, &why]).await?;
        let recurring: Option<i64> = rows.first().and_then(|row| row.get(0));
        let Some(recurring) = recurring else {
            self.source(id).await?;
            return Err(Error::Invalid(format!("source {id} is disabled: enable it first")));
        };
        self.pitwheel.recurring().run_now(recurring).await?;
        Ok(())
    }

    async fn change(
        &self,
        id: i64,
        change: impl AsyncFnOnce(&deadpool_postgres::Transaction<'_>, Locked) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let source = sources::lock(&transaction, id).await?;
        change(&transaction, source.ok_or_else(|| Error::NoSource(id.to_string()))?).await?;
        Ok(transaction.commit().await?)
    }

    /// Subscribes to a feed; the source is added if there is none. The first subscriber creates or enables its recurring job.
    /// A source that a person disabled stays disabled.
    ///
    /// # Errors
    /// If the URL or the name of the subscriber cannot be used.
    pub async fn subscribe(&self, url: &str, subscriber: &str) -> Result<Subscribed, Error> {
        check_subscriber(subscriber)?;
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let (mut source, _) = sources::find_or_add(&transaction, &NewSource::new(url)).await?;
        let statement = transaction.prepare_cached(include_str!("../sql/subscribe.sql")).await?;
        let is_new = transaction.query_opt(&statement, &[&source.id, &subscriber]).await?.is_some();
        if !source.is_enabled() && !source.is_disabled_by_operator() {
            sources::enable(&transaction, &mut source).await?;
        }
        transaction.commit().await?;
        self.hint().await;
        Ok(Subscribed { source_id: source.id, is_new })
    }

    /// Ends a subscription. The last subscriber to leave disables the recurring job. False: there was none.
    ///
    /// # Errors
    /// [`Error::NoSource`] if there is no such source.
    pub async fn unsubscribe(&self, source_id: i64, subscriber: &str) -> Result<bool, Error> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let source = sources::lock(&transaction, source_id).await?;
        let source = source.ok_or_else(|| Error::NoSource(source_id.to_string()))?;
        let statement = transaction.prepare_cached(include_str!("../sql/unsubscribe.sql")).await?;
        let ended = transaction.query_opt(&statement, &[&source_id, &subscriber]).await?.is_some();
        let statement = transaction.prepare_cached(include_str!("../sql/has_subscribers.sql")).await?;
        let others: bool = transaction.query_one(&statement, &[&source_id]).await?.get(0);
        if ended && !others && source.is_enabled() {
            sources::disable(&transaction, &source, Disabled::NoSubscribers).await?;
        }
        transaction.commit().await?;
        Ok(ended)
    }

    /// One page of articles, newest first: ids below `before`, at most `limit`, of one source or of one subscriber.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn articles(
        &self,
        before: Option<i64>,
        limit: i64,
        source: Option<i64>,
        subscriber: Option<&str>,
    ) -> Result<Vec<StoredArticle>, Error> {
        let (before, limit) = (before.unwrap_or(i64::MAX), limit.clamp(1, PAGE_MAX));
        let rows =
            self.rows(include_str!("../sql/articles.sql"), &[&before, &limit, &source, &subscriber]).await?;
        Ok(rows.iter().map(StoredArticle::read).collect())
    }

    /// The fetches of a source, newest first: ids below `before`, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn fetches(
        &self,
        source: i64,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<FetchRecord>, Error> {
        let (before, limit) = (before.unwrap_or(i64::MAX), limit.clamp(1, PAGE_MAX));
        let rows = self.rows(include_str!("../sql/fetches.sql"), &[&source, &before, &limit]).await?;
        Ok(rows.iter().map(FetchRecord::read).collect())
    }

    /// Wakes idle workers. A hint that is lost delays a fetch until the next poll, no more.
    async fn hint(&self) {
        if let Err(error) = self.pitwheel.hint(crate::kinds::QUEUE).await {
            tracing::debug!(%error, "a wake-up hint was not sent");
        }
    }
}

fn check_subscriber(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 200 || name.contains('\0') {
        return Err(Error::Invalid("the name of a subscriber has 1 to 200 bytes".into()));
    }
    Ok(())
}
