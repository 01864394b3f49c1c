//! The jobs that follow when data became current: factors are read again, then emissions are computed.

use deadpool_postgres::GenericClient;

use crate::csv::CsvOptions;
use crate::error::Error;
use crate::kinds::Load;
use crate::lane::{Dataset, Lane, Target};
use crate::store::{sources, syncs};

/// The most jobs that follow from one. A module has some dozens of entry types and years.
const FOLLOWERS_MAX: i64 = 1000;
/// The most sources of factors for one lane: by entry type and year.
const SOURCES_MAX: i64 = 4;

/// The jobs that follow from a load.
pub(crate) async fn after_load(
    client: &impl GenericClient,
    load: &Load,
    job: i64,
) -> Result<Vec<Load>, Error> {
    match load.lane.dataset() {
        Dataset::Entries => {
            let lanes = sources::of_factors(client, &load.lane, SOURCES_MAX).await?;
            if lanes.is_empty() {
                return Ok(vec![follower(load, load.lane.computed(), true, job)]);
            }
            Ok(lanes.into_iter().map(|lane| follower(load, lane, false, job)).collect())
        }
        Dataset::Factors => Ok(vec![follower(load, load.lane.computed(), false, job)]),
        Dataset::Units | Dataset::Emissions => Ok(Vec::new()),
    }
}

/// The lanes that a recalculation stands for: itself, or all entry types and years of the module that have entries.
pub(crate) async fn to_compute(client: &impl GenericClient, load: &Load) -> Result<Vec<Lane>, Error> {
    if load.only {
        return Ok(vec![load.lane.clone()]);
    }
    let found = syncs::entry_types(client, &load.lane, FOLLOWERS_MAX).await?;
    let asked = load.lane.entry_type.as_ref();
    let matching =
        found.into_iter().filter(|(entry_type, _)| asked.is_none() || entry_type.as_ref() == asked);
    let lane = |(entry_type, year)| Lane { entry_type, year, target: Target::Entries, ..load.lane.clone() };
    Ok(matching.map(lane).collect())
}

/// A job in the chain of `load`.
pub(crate) fn follower(load: &Load, lane: Lane, only: bool, job: i64) -> Load {
    let pipeline = Some(load.pipeline.unwrap_or(job));
    Load {
        lane,
        pipeline,
        file: None,
        options: CsvOptions::default(),
        only,
        requested_by: load.requested_by.clone(),
    }
}
