//! The handlers. Each loads or computes a version outside of any transaction, then makes it current in one.

use std::path::PathBuf;
use std::time::Instant;

use deadpool_postgres::Object;
use pitwheel::{Context, Verdict};
use serde_json::json;

use crate::error::Error;
use crate::ingest::Ingest;
use crate::kinds::Load;
use crate::lane::Lane;
use crate::metrics;
use crate::store::swap::{self, Ready};
use crate::store::{lanes, rows, sources, versions};
use crate::uploads::Upload;
use crate::worker::failure::Failure;
use crate::worker::load::{Input, Loaded, load};
use crate::worker::{fetch, followers};

/// What the handlers share.
pub(crate) struct Handlers {
    pub(crate) ingest: Ingest,
}

/// The file of a job; one that was fetched is deleted with this value.
struct Found {
    path: PathBuf,
    _fetched: Option<Upload>,
}

impl Handlers {
    /// Loads a file or a source into a lane.
    pub(crate) async fn load(&self, job: Load, context: Context) -> Result<Verdict, Error> {
        let begun = Instant::now();
        let mut client = self.ingest.client().await?;
        let lane_id = lanes::find_or_add(&client, &job.lane).await?;
        let version = versions::begin(&client, lane_id, context.claim()).await?;
        let loaded = match self.load_version(&mut client, &job, (lane_id, version), &context).await {
            Ok(loaded) => loaded,
            Err(Failure::Again(error)) => return Err(error),
            Err(Failure::Bad { reason, rejected }) => {
                rows::delete_data(&client, version).await?;
                versions::fail(&client, version, &reason, signed(rejected)).await?;
                metrics::ended("failed", begun.elapsed());
                return Ok(Verdict::bury(reason));
            }
        };
        let result = json!({ "version": version, "rows": loaded.rows, "rejected": loaded.rejected, "format": loaded.format });
        let ready = Ready { lane_id, version, rows: signed(loaded.rows), rejected: signed(loaded.rejected) };
        let then = followers::after_load(&client, &job, context.id()).await?;
        let completion = Verdict::complete_with(&result)?;
        let is_current = swap::make_current(&mut client, &context, (&ready, completion), &then).await?;
        self.ended(is_current, begun).await;
        if let (true, Some(file)) = (is_current, &job.file) {
            self.ingest.uploads().delete(file).await;
        }
        Ok(Verdict::complete().into())
    }

    async fn load_version(
        &self,
        client: &mut Object,
        job: &Load,
        (lane_id, version): (i64, i64),
        context: &Context,
    ) -> Result<Loaded, Failure> {
        let found = self.find(&*client, job, lane_id).await?;
        let dataset = job.lane.dataset();
        let input = Input { path: found.path.clone(), dataset, version, options: job.options.clone() };
        let loaded = load(client, input, context).await?;
        match rows::duplicate(&*client, dataset, version).await? {
            None => Ok(loaded),
            Some((first, last, what)) => {
                let reason = format!("lines {first} and {last} are both about `{what}`: keep one of them");
                Err(Failure::Bad { reason, rejected: loaded.rejected })
            }
        }
    }

    /// The file that the job names, or what its source has now.
    async fn find(&self, client: &Object, job: &Load, lane_id: i64) -> Result<Found, Failure> {
        let uploads = self.ingest.uploads();
        if let Some(file) = &job.file {
            let path = uploads.path(file)?;
            if !path.exists() {
                let folder = uploads.folder().display();
                let problem =
                    format!("the upload is not in `{folder}`: give all processes the same --upload-dir");
                return Err(Failure::Again(Error::Unreadable(problem)));
            }
            return Ok(Found { path, _fetched: None });
        }
        match sources::get(client, lane_id).await? {
            None => Err(Failure::bad(format!("lane `{}` has no source any more", job.lane))),
            Some(path) if path.starts_with('/') => Ok(Found { path: path.into(), _fetched: None }),
            Some(url) => {
                let fetched = fetch::get(&url, uploads).await.map_err(Failure::Again)?;
                Ok(Found { path: fetched.path().to_owned(), _fetched: Some(fetched) })
            }
        }
    }

    /// Computes the emissions of a lane, or enqueues a job for each lane that the job stands for.
    pub(crate) async fn recalculate(&self, job: Load, context: Context) -> Result<Verdict, Error> {
        let begun = Instant::now();
        let mut client = self.ingest.client().await?;
        let mut to_compute = followers::to_compute(&client, &job).await?;
        if to_compute != [job.lane.clone()] {
            let then: Vec<Load> = to_compute
                .drain(..)
                .map(|lane| followers::follower(&job, lane, true, context.id()))
                .collect();
            let completion = Verdict::complete_with(&json!({ "recalculations": then.len() }))?;
            let is_written = swap::complete(&mut client, &context, completion, &then).await?;
            self.ended(is_written, begun).await;
            return Ok(Verdict::complete().into());
        }
        let is_current = self.compute(&mut client, &job.lane, &context).await?;
        self.ended(is_current, begun).await;
        Ok(Verdict::complete().into())
    }

    async fn compute(&self, client: &mut Object, lane: &Lane, context: &Context) -> Result<bool, Error> {
        let lane_id = lanes::find_or_add(&*client, lane).await?;
        let version = versions::begin(&*client, lane_id, context.claim()).await?;
        let computed = rows::compute_emissions(client, version, lane).await?;
        let Some((rows, without_factor)) = computed else {
            return Err(Error::Unreadable("the job was given to another worker".into()));
        };
        let result = json!({ "version": version, "rows": rows, "without_factor": without_factor });
        let ready = Ready { lane_id, version, rows, rejected: 0 };
        swap::make_current(client, context, (&ready, Verdict::complete_with(&result)?), &[]).await
    }

    /// Counts an attempt, and wakes workers for what follows from it.
    async fn ended(&self, is_written: bool, begun: Instant) {
        metrics::ended(if is_written { "current" } else { "lost" }, begun.elapsed());
        if is_written {
            self.ingest.hint().await;
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
