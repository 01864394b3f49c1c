//! Sources: what is fetched, and when.

use std::time::SystemTime;

use deadpool_postgres::Transaction;
use pitwheel::transaction::tokio_postgres as engine;
use pitwheel::{Cadence, NewRecurring};
use tokio_postgres::Row;
use url::Url;

use crate::error::Error;
use crate::kinds::{FetchFeed, QUEUE};
use crate::store::websub;

const LOCK_SOURCE: &str = include_str!("../../sql/lock_source.sql");

/// A source.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Source {
    /// Its id.
    pub id: i64,
    /// Its URL.
    pub url: String,
    /// Its name; the URL if none was given.
    pub name: String,
    /// Its category.
    pub category: Option<String>,
    /// From -9 to 9; higher is fetched first.
    pub priority: i16,
    /// The minutes between two fetches.
    pub fetch_interval_minutes: i32,
    /// Why it is not fetched; `None` while it is enabled.
    pub disabled_because: Option<String>,
    /// When it was added.
    pub created_at: SystemTime,
    /// The last fetch that succeeded.
    pub last_fetched_at: Option<SystemTime>,
    /// The next fetch; `None` while disabled.
    pub next_fetch_at: Option<SystemTime>,
    /// Why the next fetch is then.
    pub next_fetch_reason: Option<String>,
    /// Fetches that failed in a row.
    pub consecutive_failures: i32,
    /// The error of the last fetch, if it failed.
    pub last_error: Option<String>,
    /// Where permanent redirects lead, before the new URL is adopted.
    pub moved_to: Option<String>,
    /// Its recurring job.
    pub recurring_id: Option<i64>,
    /// The number of subscribers.
    pub subscribers: i64,
    /// Until when a hub pushes its articles.
    pub push_until: Option<SystemTime>,
}

impl Source {
    pub(crate) fn read(row: &Row) -> Source {
        Source {
            id: row.get("id"),
            url: row.get("url"),
            name: row.get("name"),
            category: row.get("category"),
            priority: row.get("priority"),
            fetch_interval_minutes: row.get("fetch_interval_minutes"),
            disabled_because: row.get("disabled_because"),
            created_at: row.get("created_at"),
            last_fetched_at: row.get("last_fetched_at"),
            next_fetch_at: row.get("next_fetch_at"),
            next_fetch_reason: row.get("next_fetch_reason"),
            consecutive_failures: row.get("consecutive_failures"),
            last_error: row.get("last_error"),
            moved_to: row.get("moved_to"),
            recurring_id: row.get("recurring_id"),
            subscribers: row.get("subscribers"),
            push_until: row.get("push_until"),
        }
    }
}

/// A source to add. What is `None` keeps its value, or gets the default: name = URL, priority 0, 60 minutes.
#[derive(Debug, Clone, Default)]
pub struct NewSource {
    /// The URL of the feed.
    pub url: String,
    /// The name.
    pub name: Option<String>,
    /// The category.
    pub category: Option<String>,
    /// From -9 to 9; higher is fetched first.
    pub priority: Option<i16>,
    /// The minutes between two fetches, 1 to 10,080.
    pub fetch_interval_minutes: Option<i32>,
}

impl NewSource {
    /// A source with defaults.
    pub fn new(url: impl Into<String>) -> NewSource {
        NewSource { url: url.into(), ..NewSource::default() }
    }

    /// The URL in its normal form.
    pub(crate) fn checked_url(&self) -> Result<String, Error> {
        let parsed = Url::parse(self.url.trim()).ok();
        let usable = parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = usable.ok_or_else(|| crate::fetch::FetchError::Url(self.url.clone()))?;
        if self.priority.is_some_and(|priority| !(-9..=9).contains(&priority)) {
            return Err(Error::Invalid("the priority is from -9 to 9, higher first".into()));
        }
        if self.fetch_interval_minutes.is_some_and(|minutes| !(1..=10_080).contains(&minutes)) {
            return Err(Error::Invalid("the interval is from 1 to 10080 minutes".into()));
        }
        Ok(url.to_string())
    }
}

/// Why a source is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disabled {
    /// The last subscriber left.
    NoSubscribers,
    /// The server answered 410.
    Gone,
    /// A person disabled it.
    Operator,
}

impl Disabled {
    /// As in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Disabled::NoSubscribers => "no subscribers",
            Disabled::Gone => "gone",
            Disabled::Operator => "operator",
        }
    }
}

/// A source that this transaction has locked.
pub(crate) struct Locked {
    pub(crate) id: i64,
    priority: i16,
    minutes: i32,
    recurring_id: Option<i64>,
    disabled_because: Option<String>,
}

impl Locked {
    pub(crate) fn is_enabled(&self) -> bool {
        self.recurring_id.is_some() && self.disabled_because.is_none()
    }

    pub(crate) fn is_disabled_by_operator(&self) -> bool {
        self.disabled_because.as_deref() == Some(Disabled::Operator.as_str())
    }
}

/// Locks a source. Everything that changes a source and its recurring job begins with this.
pub(crate) async fn lock(transaction: &Transaction<'_>, id: i64) -> Result<Option<Locked>, Error> {
    let statement = transaction.prepare_cached(LOCK_SOURCE).await?;
    let row = transaction.query_opt(&statement, &[&id]).await?;
    Ok(row.map(|row| Locked {
        id,
        priority: row.get("priority"),
        minutes: row.get("fetch_interval_minutes"),
        recurring_id: row.get("recurring_id"),
        disabled_because: row.get("disabled_because"),
    }))
}

/// Finds or adds a source and locks it. True: it was added.
pub(crate) async fn find_or_add(
    transaction: &Transaction<'_>,
    new: &NewSource,
) -> Result<(Locked, bool), Error> {
    let url = new.checked_url()?;
    loop {
        let statement = transaction.prepare_cached(include_str!("../../sql/add_source.sql")).await?;
        let settings: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&url, &new.name, &new.category, &new.priority, &new.fetch_interval_minutes];
        let added = transaction.query_opt(&statement, &settings).await?.map(|row| row.get::<_, i64>(0));
        let id = match added {
            Some(id) => Some(id),
            None => {
                let by_url = transaction.prepare_cached(include_str!("../../sql/source_by_url.sql")).await?;
                transaction.query_opt(&by_url, &[&url]).await?.map(|row| row.get("id"))
            }
        };
        // `None`: it was removed between the statements.
        if let Some(id) = id
            && let Some(locked) = lock(transaction, id).await?
        {
            return Ok((locked, added.is_some()));
        }
    }
}

/// Changes the settings of a source that are given.
pub(crate) async fn change(
    transaction: &Transaction<'_>,
    source: &mut Locked,
    new: &NewSource,
) -> Result<(), Error> {
    let statement = transaction.prepare_cached(include_str!("../../sql/change_source.sql")).await?;
    let row = transaction
        .query_one(
            &statement,
            &[&source.id, &new.name, &new.category, &new.priority, &new.fetch_interval_minutes],
        )
        .await?;
    let settings = (row.get(0), row.get(1));
    if source.recurring_id.is_some() && settings != (source.priority, source.minutes) && source.is_enabled() {
        (source.priority, source.minutes) = settings;
        return enable(transaction, source).await;
    }
    (source.priority, source.minutes) = settings;
    Ok(())
}

/// Creates or enables the recurring job of a source, and mirrors its next run.
pub(crate) async fn enable(transaction: &Transaction<'_>, source: &mut Locked) -> Result<(), Error> {
    let interval = std::time::Duration::from_secs(u64::from(source.minutes.unsigned_abs()) * 60);
    let job = FetchFeed { source_id: source.id };
    let recurring = NewRecurring::of(&job, source.id.to_string(), Cadence::every(interval)?)
        .queue(QUEUE)
        .priority(source.priority);
    let created = engine::create_recurring(transaction, &recurring).await?;
    let statement = transaction.prepare_cached(include_str!("../../sql/source_enabled.sql")).await?;
    let reason =
        if source.recurring_id.is_none() { "the source was added" } else { "the source was enabled" };
    let next_at = created.next_run.map(|next| next.at);
    transaction.execute(&statement, &[&source.id, &created.id, &next_at, &reason]).await?;
    (source.recurring_id, source.disabled_because) = (Some(created.id), None);
    Ok(())
}

/// Disables the recurring job of a source. A fetch in progress finishes.
pub(crate) async fn disable(
    transaction: &Transaction<'_>,
    source: &Locked,
    why: Disabled,
) -> Result<(), Error> {
    if let Some(recurring) = source.recurring_id {
        engine::disable_recurring(transaction, recurring).await?;
    }
    disabled(transaction, source.id, why).await
}

/// Notes that a source is disabled, and lets its subscription at a hub end.
pub(crate) async fn disabled(transaction: &Transaction<'_>, id: i64, why: Disabled) -> Result<(), Error> {
    let statement = transaction.prepare_cached(include_str!("../../sql/source_disabled.sql")).await?;
    transaction.execute(&statement, &[&id, &why.as_str()]).await?;
    websub::end(transaction, id).await
}

/// Removes a source that this transaction has locked, with its recurring job.
pub(crate) async fn remove(transaction: &Transaction<'_>, source: &Locked) -> Result<(), Error> {
    transaction.query_one(include_str!("../../sql/remove_source.sql"), &[&source.id]).await?;
    Ok(())
}
