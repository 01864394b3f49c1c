//! What people see of lanes: the current job, and the jobs of a lane.

use tokio_postgres::types::Type;

use crate::error::Error;
use crate::job::lane::Lane;
use crate::operate::jobs::{JobPage, JobSummary, jobs_by_id, summary};
use crate::operate::page::page;
use crate::postgres::{Params, Sql, query};

/// The current job of a lane: the one that was claimed last.
#[derive(Debug, Clone, PartialEq)]
pub struct CurrentJob {
    /// Its id.
    pub id: i64,
    /// The job; `None`: it is finished, and its kind keeps no history.
    pub job: Option<JobSummary>,
}

/// Which jobs of a lane to list. The default is the newest 50.
#[derive(Debug, Clone, Default)]
pub struct LaneFilter {
    /// Only jobs of kinds that are not redacted.
    pub without_redacted: bool,
    /// Only ids below this one: the cursor of the page before.
    pub before: Option<i64>,
    /// Jobs per page, at most 1,000; 0 means 50.
    pub limit: usize,
}

pub(crate) async fn current(client: &impl Sql, lane: &Lane) -> Result<Option<CurrentJob>, Error> {
    lane.check()?;
    let sql = include_str!("../../sql/operate/lane_current.sql");
    let rows = query(client, sql, &[(&lane.as_json(), Type::TEXT)]).await?;
    let Some(id) = rows.first().map(|row| row.get::<_, i64>(0)) else { return Ok(None) };
    let job = jobs_by_id(client, &[id]).await?.into_iter().next();
    Ok(Some(CurrentJob { id, job }))
}

pub(crate) async fn lane_jobs(client: &impl Sql, lane: &Lane, filter: &LaneFilter) -> Result<JobPage, Error> {
    lane.check()?;
    let (before, limit) = page(filter.before, filter.limit)?;
    let params: Params = &[
        (&lane.as_json(), Type::TEXT),
        (&before, Type::INT8),
        (&limit, Type::INT8),
        (&filter.without_redacted, Type::BOOL),
    ];
    let rows = query(client, include_str!("../../sql/operate/lane_jobs.sql"), params).await?;
    let jobs = rows.iter().map(summary).collect::<Result<Vec<JobSummary>, Error>>()?;
    let next = jobs.last().map(|job| job.id).filter(|_| jobs.len() as i64 == limit);
    Ok(JobPage { jobs, next })
}
