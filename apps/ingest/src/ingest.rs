//! The handle through which a program uses the ingestion.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use pitwheel::{Cadence, JobSummary, NewRecurring, Pitwheel};
use url::Url;

use crate::csv::{CsvOptions, Rows};
use crate::error::Error;
use crate::kinds::{Load, QUEUE, Upkeep};
use crate::lane::{Lane, LaneFilter, Method};
use crate::store::{self, LaneState, RejectedRow, Source, SyncJob, Version, lanes, sources, syncs, versions};
use crate::uploads::{Upload, Uploads};

/// Connections besides those of the engine.
const CONNECTIONS: usize = 8;
/// How often old versions are deleted.
const UPKEEP_EVERY: Duration = Duration::from_secs(3600);
/// The longest page of a list.
pub const PAGE_MAX: i64 = 1000;

/// The ingestion in a database that has the engine. Cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    pitwheel: Pitwheel,
    pool: Pool,
    uploads: Uploads,
}

/// A job of the ingestion.
#[derive(Debug, Clone)]
pub struct IngestJob {
    /// What it was asked to do.
    pub sync: SyncJob,
    /// What became of it; `None`: its history was pruned.
    pub job: Option<JobSummary>,
}

impl Ingest {
    /// Connects.
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub async fn connect(url: &str, uploads: Uploads) -> Result<Ingest, Error> {
        let mut options = pitwheel::Options::default();
        options.application = "pitwheel-ingest".to_owned();
        Ingest::on(&Pitwheel::connect_with(url, options).await?, url, uploads)
    }

    /// The ingestion in a database that is connected already.
    ///
    /// # Errors
    /// If the URL cannot be used.
    pub fn on(pitwheel: &Pitwheel, url: &str, uploads: Uploads) -> Result<Ingest, Error> {
        let pool = pitwheel_app::connect(url, "pitwheel-ingest", CONNECTIONS)?;
        Ok(Ingest { pitwheel: pitwheel.clone(), pool, uploads })
    }

    /// Brings the schemas of the engine and of the ingestion up to this version, and creates the recurring job that deletes old
    /// versions. Safe to call from every process at every start.
    ///
    /// # Errors
    /// If the database fails, or its schema is newer.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.pitwheel.migrate().await?;
        pitwheel_app::migrate(self.client().await?, &store::SCHEMA).await?;
        let upkeep = NewRecurring::of(&Upkeep {}, "all", Cadence::every(UPKEEP_EVERY)?);
        self.pitwheel.recurring().create(upkeep.queue(QUEUE)).await?;
        Ok(())
    }

    /// The engine.
    pub fn pitwheel(&self) -> &Pitwheel {
        &self.pitwheel
    }

    /// The folder of uploads.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    pub(crate) async fn client(&self) -> Result<Object, Error> {
        Ok(self.pool.get().await?)
    }

    /// Loads an uploaded file into a lane with the method `csv`. A file whose beginning cannot be read is refused at once. Returns the
    /// id of the job.
    ///
    /// # Errors
    /// [`Error::Csv`] if the file cannot be read, [`Error::Invalid`] if the lane makes no sense.
    pub async fn load(
        &self,
        lane: &Lane,
        upload: Upload,
        file_name: Option<&str>,
        options: &CsvOptions,
        requested_by: &str,
    ) -> Result<i64, Error> {
        lane.check()?;
        if lane.method != Method::Csv {
            return Err(Error::Invalid("a file is loaded with the method `csv`".into()));
        }
        let (path, columns, read_as) = (upload.path().to_owned(), lane.dataset().columns(), options.clone());
        let open = move || {
            let file = std::fs::File::open(path).map_err(crate::csv::CsvError::from)?;
            Rows::open(file, columns, &read_as).map(drop)
        };
        tokio::task::spawn_blocking(open).await.map_err(|error| Error::Unreadable(error.to_string()))??;
        let (lane, options) = (lane.clone(), options.clone());
        let file = Some(upload.keep());
        let load =
            Load { lane, pipeline: None, file, options, only: false, requested_by: requested_by.to_owned() };
        let requested = self.request(&load, file_name).await;
        if let (Err(_), Some(file)) = (&requested, &load.file) {
            self.uploads.delete(file).await;
        }
        requested
    }

    /// Reads the source of a lane with the method `api`, or computes a lane with the method `computed`. Returns the id of the job.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lane has no source, or makes no sense.
    pub async fn sync(&self, lane: &Lane, options: &CsvOptions, requested_by: &str) -> Result<i64, Error> {
        lane.check()?;
        match lane.method {
            Method::Csv => return Err(Error::Invalid("the method `csv` needs a file: upload it".into())),
            Method::Computed => {}
            Method::Api => {
                let client = self.client().await?;
                let lane_id = lanes::find_or_add(&client, lane).await?;
                if sources::get(&client, lane_id).await?.is_none() {
                    let problem =
                        format!("lane `{lane}` has no source: set one with `pitwheel-ingest sources set`");
                    return Err(Error::Invalid(problem));
                }
            }
        }
        let (lane, options) = (lane.clone(), options.clone());
        let requested_by = requested_by.to_owned();
        let load = Load { lane, pipeline: None, file: None, options, only: false, requested_by };
        self.request(&load, None).await
    }

    async fn request(&self, load: &Load, file_name: Option<&str>) -> Result<i64, Error> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let id = syncs::add(&transaction, load, file_name).await?;
        transaction.commit().await?;
        self.hint().await;
        Ok(id)
    }

    /// Wakes idle workers. A hint that is lost delays a job until the next poll, no more.
    pub(crate) async fn hint(&self) {
        if let Err(error) = self.pitwheel.hint(QUEUE).await {
            tracing::debug!(%error, "a wake-up hint was not sent");
        }
    }

    /// Jobs, newest first: ids below `before`, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn jobs(
        &self,
        filter: &LaneFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<IngestJob>, Error> {
        let (before, limit) = (before.unwrap_or(i64::MAX), limit.clamp(1, PAGE_MAX));
        let syncs = syncs::list(&self.client().await?, filter, before, limit).await?;
        let ids: Vec<i64> = syncs.iter().map(|sync| sync.job_id).collect();
        let mut found = self.pitwheel.jobs_by_id(&ids).await?;
        let job_of = |sync: SyncJob| {
            let at = found.iter().position(|job| job.id == sync.job_id);
            IngestJob { job: at.map(|at| found.swap_remove(at)), sync }
        };
        Ok(syncs.into_iter().map(job_of).collect())
    }

    /// One job.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none.
    pub async fn job(&self, id: i64) -> Result<IngestJob, Error> {
        let sync = syncs::get(&self.client().await?, id).await?;
        Ok(IngestJob { sync, job: self.pitwheel.jobs_by_id(&[id]).await?.pop() })
    }

    /// Lanes with their current versions: ids above `after`, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn lanes(&self, filter: &LaneFilter, after: i64, limit: i64) -> Result<Vec<LaneState>, Error> {
        lanes::list(&self.client().await?, filter, after, limit.clamp(1, PAGE_MAX)).await
    }

    /// The versions of a lane, newest first: ids below `before`, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn versions(
        &self,
        lane_id: i64,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<Version>, Error> {
        let (before, limit) = (before.unwrap_or(i64::MAX), limit.clamp(1, PAGE_MAX));
        versions::list(&self.client().await?, lane_id, before, limit).await
    }

    /// One version.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none.
    pub async fn version(&self, id: i64) -> Result<Version, Error> {
        versions::get(&self.client().await?, id).await
    }

    /// Makes a loaded version the current one of its lane again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not loaded.
    pub async fn promote(&self, version: i64) -> Result<Version, Error> {
        versions::promote(&mut self.client().await?, version).await
    }

    /// The rows of a loaded version as JSON, with their lines: lines above `after`, at most `limit`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not loaded.
    pub async fn rows(&self, version: i64, after: i64, limit: i64) -> Result<Vec<(i64, String)>, Error> {
        let found = self.version(version).await?;
        if !found.is_loaded() {
            return Err(Error::Invalid(format!("version {version} is not loaded: it is {}", found.state)));
        }
        let data = (version, found.lane.dataset());
        store::rows::list(&self.client().await?, data, after, limit.clamp(1, PAGE_MAX)).await
    }

    /// The rejected rows of the last attempt of a job: lines above `after`, at most `limit`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the job loaded nothing.
    pub async fn rejected(&self, job: i64, after: i64, limit: i64) -> Result<Vec<RejectedRow>, Error> {
        let client = self.client().await?;
        let version = versions::of_job(&client, job).await?;
        let version = version.ok_or_else(|| Error::NotFound(format!("data of job {job}")))?;
        store::rows::rejected(&client, version, after, limit.clamp(1, PAGE_MAX)).await
    }

    /// Says where the method `api` reads the data of a lane: a URL, or a file on the machines that run the jobs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is neither, or the URL has a user name or a password.
    pub async fn set_source(&self, lane: &Lane, location: &str) -> Result<(), Error> {
        lane.check()?;
        let is_url = location.starts_with("http://") || location.starts_with("https://");
        if lane.method != Method::Api || !(is_url || location.starts_with('/')) || location.len() > 2000 {
            let problem = "a source has the method `api`, and is a URL or the absolute path of a file";
            return Err(Error::Invalid(problem.to_owned()));
        }
        // They would be shown in lists, errors and logs, and are not sent.
        let url = is_url.then(|| Url::parse(location)).transpose();
        let url =
            url.map_err(|error| Error::Invalid(format!("the URL of a source is not usable: {error}")))?;
        if url.is_some_and(|url| !url.username().is_empty() || url.password().is_some()) {
            let problem = "the URL of a source has no user name and no password: they are not sent, and everyone would see them";
            return Err(Error::Invalid(problem.to_owned()));
        }
        sources::set(&self.client().await?, lane, location).await
    }

    /// Forgets the source of a lane. False: it had none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn remove_source(&self, lane: &Lane) -> Result<bool, Error> {
        sources::remove(&self.client().await?, lane).await
    }

    /// All sources.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn sources(&self) -> Result<Vec<Source>, Error> {
        sources::list(&self.client().await?, PAGE_MAX).await
    }
}
