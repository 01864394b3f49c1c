//! A database with the ingestion in it, files to load, and workers.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::stream;
use pitwheel::{JobDetail, State};
use pitwheel_ingest::{
    CsvOptions, CurrentVersion, Error, Ingest, Lane, LaneFilter, Method, Target, Upload, Uploads,
    WorkerOptions,
};
use pitwheel_testkit::{ScratchFolder, TestDb, wait_until};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A database with the ingestion in it.
pub(crate) struct TestIngest {
    pub(crate) db: TestDb,
    pub(crate) ingest: Ingest,
    pub(crate) folder: ScratchFolder,
}

/// Entries of `travel`, `flights`, 2025, from files.
pub(crate) fn lane() -> Lane {
    Lane {
        module: Some("travel".into()),
        entry_type: Some("flights".into()),
        target: Target::Entries,
        method: Method::Csv,
        year: Some(2025),
    }
}

/// A file of entries whose quantities are these.
pub(crate) fn entries(quantities: &[&str]) -> String {
    let rows = quantities.iter().map(|quantity| format!("it,flight,{quantity},km\n"));
    format!("unit,category,quantity,measure\n{}", rows.collect::<String>())
}

pub(crate) fn skipping() -> CsvOptions {
    CsvOptions { skip_bad_rows: true, ..CsvOptions::default() }
}

impl TestIngest {
    pub(crate) async fn new() -> Result<TestIngest> {
        let (db, folder) = (TestDb::new().await?, ScratchFolder::create()?);
        let ingest = Ingest::on(db.pitwheel(), db.url(), Uploads::new(folder.path()))?;
        ingest.migrate().await?;
        Ok(TestIngest { db, ingest, folder })
    }

    pub(crate) async fn receive(&self, bytes: impl Into<Bytes>) -> Result<Upload, Error> {
        self.ingest.uploads().receive(stream::iter([Ok::<_, Infallible>(bytes.into())])).await
    }

    /// Enqueues the load of a file. Returns the job.
    pub(crate) async fn upload(
        &self,
        lane: &Lane,
        text: impl Into<Bytes>,
        options: &CsvOptions,
    ) -> Result<i64> {
        let upload = self.receive(text).await?;
        Ok(self.ingest.load(lane, upload, Some("test.csv"), options, "test").await?)
    }

    /// Loads a file with a worker of its own, and waits until the job has ended.
    pub(crate) async fn load(
        &self,
        lane: &Lane,
        text: impl Into<Bytes>,
        options: &CsvOptions,
    ) -> Result<JobDetail> {
        let id = self.upload(lane, text, options).await?;
        self.run(id).await
    }

    /// Runs a worker until the job has ended.
    pub(crate) async fn run(&self, id: i64) -> Result<JobDetail> {
        let worker = self.start(WorkerOptions::default());
        let ended = self.ended(id).await;
        worker.stop().await?;
        ended
    }

    /// Runs a worker until no job is live but the recurring one.
    pub(crate) async fn run_all(&self) -> Result<()> {
        let worker = self.start(WorkerOptions::default());
        let live = "select count(*) from pitwheel.job where kind <> 'ingest_upkeep'";
        wait_until("all jobs have ended", || async { Ok(self.db.count(live).await? == 0) }).await?;
        worker.stop().await
    }

    /// Waits until the job has ended.
    pub(crate) async fn ended(&self, id: i64) -> Result<JobDetail> {
        wait_until("the job has ended", || async {
            Ok(self.db.pitwheel().job(id).await?.summary.finished_at.is_some())
        })
        .await?;
        Ok(self.db.pitwheel().job(id).await?)
    }

    pub(crate) async fn current(&self, lane: &Lane) -> Result<Option<CurrentVersion>> {
        let lanes = self.ingest.lanes(&LaneFilter::default(), 0, 1000).await?;
        Ok(lanes.into_iter().find(|state| state.lane == *lane).and_then(|state| state.current))
    }

    /// The quantities of the current version of a lane.
    pub(crate) async fn quantities(&self, lane: &Lane) -> Result<Vec<String>> {
        let current = self.current(lane).await?.context("nothing is current")?;
        self.quantities_of(current.id).await
    }

    /// The quantities of a version.
    pub(crate) async fn quantities_of(&self, version: i64) -> Result<Vec<String>> {
        let rows = self.ingest.rows(version, 0, 1000).await?;
        let read = |(_, data): &(i64, String)| {
            Ok(serde_json::from_str::<serde_json::Value>(data)?["quantity"].to_string())
        };
        rows.iter().map(read).collect()
    }

    /// The error of a dead job.
    pub(crate) fn error(job: &JobDetail) -> String {
        assert_eq!(job.summary.state, State::Dead, "{:?}", job.result);
        job.errors[0]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// The files in the folder of uploads.
    pub(crate) fn files(&self) -> Result<usize> {
        Ok(std::fs::read_dir(self.folder.path())?.count())
    }

    pub(crate) fn start(&self, options: WorkerOptions) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let ingest = self.ingest.clone();
        let task = tokio::spawn(async move {
            pitwheel_ingest::run(&ingest, options, async { drop(stopped.await) }).await
        });
        Running { stop, task }
    }
}

/// A lease that expires within the test, renewed four times in it.
pub(crate) fn short_lease() -> WorkerOptions {
    let mut options = WorkerOptions::default();
    options.lease = Duration::from_secs(2);
    options
}

pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}
