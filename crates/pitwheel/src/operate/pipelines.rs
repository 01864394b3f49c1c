//! The handle for pipelines. It only delegates.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::hint::{self, Hints, log_unhinted};
use crate::engine::lanes::promote_lanes;
use crate::error::Error;
use crate::job::new_pipeline::NewPipeline;
use crate::operate::pipeline::{self, Pipeline, PipelineDetail, PipelineFilter, PipelinePage, Started};
use crate::postgres::{Pool, Session};

/// Pipelines: jobs that belong together, each after those that it depends on. Made by
/// [`Pitwheel::pipelines`](crate::Pitwheel::pipelines).
#[derive(Clone)]
pub struct Pipelines {
    pool: Pool,
    hints: Arc<Hints>,
    actor: Arc<str>,
}

impl Pipelines {
    pub(crate) fn new(pool: Pool, hints: Arc<Hints>, actor: Arc<str>) -> Pipelines {
        Pipelines { pool, hints, actor }
    }

    /// Creates a pipeline, and enqueues the jobs of its first steps. Returns its id. After an error it may exist.
    pub async fn create(&self, new: NewPipeline) -> Result<i64, Error> {
        let client = self.pool.get().await?;
        let created = pipeline::only(pipeline::create(&client, std::slice::from_ref(&new)).await?)?;
        self.start(&client, [&created.started]).await;
        Ok(created.id)
    }

    /// Creates many pipelines, up to 500 per statement; each statement commits by itself. Their ids are in the order given.
    pub async fn create_many(&self, new: impl IntoIterator<Item = NewPipeline>) -> Result<Vec<i64>, Error> {
        let new: Vec<NewPipeline> = new.into_iter().collect();
        let client = self.pool.get().await?;
        let created = pipeline::create(&client, &new).await?;
        self.start(&client, created.iter().map(|one| &one.started)).await;
        Ok(created.into_iter().map(|one| one.id).collect())
    }

    /// One pipeline, without its steps: as cheap as one of a list.
    pub async fn summary(&self, id: i64) -> Result<Pipeline, Error> {
        pipeline::summary(&self.pool.get().await?, id).await
    }

    /// One pipeline, with its steps and up to 1 MiB of their results.
    pub async fn get(&self, id: i64) -> Result<PipelineDetail, Error> {
        pipeline::get(&self.pool.get().await?, id).await
    }

    /// Pipelines, newest first, one page at a time.
    pub async fn list(&self, filter: &PipelineFilter) -> Result<PipelinePage, Error> {
        pipeline::list(&self.pool.get().await?, filter).await
    }

    /// Cancels a pipeline: steps that wait will not run, waiting jobs are cancelled, and the handlers of running jobs are asked to stop.
    /// False: it had ended.
    pub async fn cancel(&self, id: i64) -> Result<bool, Error> {
        let client = self.pool.get().await?;
        let (changed, requested) = pipeline::cancel(&client, &self.actor, id).await?;
        if requested {
            log_unhinted(hint::cancel(&client).await);
        }
        Ok(changed)
    }

    /// Runs the steps again that are dead, cancelled or skipped, each after those that it depends on. False: there are none.
    pub async fn retry(&self, id: i64) -> Result<bool, Error> {
        let client = self.pool.get().await?;
        let (changed, started) = pipeline::retry(&client, &self.actor, id).await?;
        self.start(&client, [&started]).await;
        Ok(changed)
    }

    /// Promotes the lanes that new jobs entered, and wakes idle workers. What fails delays a job until the next look or poll, no more.
    async fn start<'a>(&self, client: &Session, started: impl IntoIterator<Item = &'a Started>) {
        let (mut due, mut lanes) = (BTreeSet::new(), BTreeSet::new());
        for one in started {
            due.extend(one.due.iter().cloned());
            lanes.extend(one.lanes.iter().map(String::as_str));
        }
        let lanes: Vec<&str> = lanes.into_iter().collect();
        log_unhinted(promote_lanes(client, &lanes).await.map(|queues| due.extend(queues)));
        for queue in &due {
            log_unhinted(self.hints.due(client, queue).await);
        }
    }
}
