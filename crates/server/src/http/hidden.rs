//! Lists of jobs by a key or a lane, for callers who may not see those of redacted kinds. The answer is as if there were no such
//! jobs: otherwise it would tell whether one has the key or the lane.

use pitwheel::{Filter, JobPage, JobSummary, Lane, Pitwheel};

use crate::problem::Problem;

/// Jobs of a page, if the caller does not say how many.
const PAGE: usize = 50;
/// The most jobs of a page.
const PAGE_MAX: usize = 1000;
/// Pages of [`PAGE_MAX`] jobs that are read for one answer. A list with a filter scans no more rows than they have jobs.
const PAGES_MAX: usize = 20;

/// What jobs are found by.
pub(crate) enum FoundBy<'f> {
    /// The key of this filter, and what else it has.
    Key(&'f Filter),
    /// This lane; ids below the second value.
    Lane(&'f Lane, Option<i64>),
}

impl FoundBy<'_> {
    /// A page, with hidden jobs.
    async fn page(
        &self,
        pitwheel: &Pitwheel,
        before: Option<i64>,
        limit: usize,
    ) -> Result<JobPage, pitwheel::Error> {
        match self {
            FoundBy::Key(filter) => pitwheel.jobs(&Filter { before, limit, ..(*filter).clone() }).await,
            FoundBy::Lane(lane, _) => pitwheel.lane_jobs(lane, before, limit).await,
        }
    }

    /// The id down to which a page scans; `None`: down to the oldest job.
    async fn floor(&self, pitwheel: &Pitwheel) -> Result<Option<i64>, pitwheel::Error> {
        let FoundBy::Key(filter) = self else { return Ok(None) };
        // No job has this key, so the page ends where the scan does.
        let key = Some(format!("{:032x}", fastrand::u128(..)));
        Ok(pitwheel.jobs(&Filter { key, ..(*filter).clone() }).await?.next)
    }

    fn before(&self) -> Option<i64> {
        match self {
            FoundBy::Key(filter) => filter.before,
            FoundBy::Lane(_, before) => *before,
        }
    }
}

/// A page without hidden jobs. Its cursor is the last job that it shows, or the end of the scan.
pub(crate) async fn page_of_shown(
    pitwheel: &Pitwheel,
    found_by: FoundBy<'_>,
    limit: usize,
) -> Result<JobPage, Problem> {
    if limit > PAGE_MAX {
        return Err(Problem::invalid(format!(
            "limit {limit} is above {PAGE_MAX}: ask for the next page with `before`"
        )));
    }
    let limit = if limit == 0 { PAGE } else { limit };
    let floor = found_by.floor(pitwheel).await?;
    let (mut jobs, mut before) = (Vec::new(), found_by.before());
    for _ in 0..PAGES_MAX {
        let page = found_by.page(pitwheel, before, PAGE_MAX).await?;
        let is_full = page.jobs.len() == PAGE_MAX;
        before = page.jobs.last().map(|job| job.id);
        let is_shown = |job: &JobSummary| !job.redacted && floor.is_none_or(|floor| job.id >= floor);
        jobs.extend(page.jobs.into_iter().filter(is_shown));
        if !is_full || jobs.len() >= limit || before < floor {
            break;
        }
    }
    jobs.truncate(limit);
    let last = jobs.last().map(|job| job.id).filter(|_| jobs.len() == limit);
    Ok(JobPage { jobs, next: last.or(floor) })
}
