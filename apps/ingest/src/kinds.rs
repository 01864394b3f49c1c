//! The kinds of jobs, and their queue.

use pitwheel::{Job, NewJob};
use serde::{Deserialize, Serialize};

use crate::csv::CsvOptions;
use crate::lane::{Lane, Method, Target};

/// The queue of all jobs.
pub const QUEUE: &str = "ingest";
/// Attempts of a job. What is wrong with a file is not tried again; this is for databases and sources that cannot be reached.
const ATTEMPTS: u32 = 10;

/// What to load, and from where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// The lane.
    pub lane: Lane,
    /// The first job of its chain; `None`: this one.
    #[serde(default)]
    pub pipeline: Option<i64>,
    /// The name of an uploaded file in the folder of uploads; `None`: the source of the lane is read.
    #[serde(default)]
    pub file: Option<String>,
    /// How the file is to be read.
    #[serde(default)]
    pub options: CsvOptions,
    /// Only this lane is computed. Otherwise a lane without entry type or year stands for all that the module has.
    #[serde(default)]
    pub only: bool,
    /// Who asked for it.
    pub requested_by: String,
}

/// Loads entries.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsvIngest(pub Load);

impl Job for CsvIngest {
    const KIND: &str = "csv_ingest";
    const QUEUE: &str = QUEUE;
    const MAX_ATTEMPTS: u32 = ATTEMPTS;
}

/// Loads factors.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FactorIngest(pub Load);

impl Job for FactorIngest {
    const KIND: &str = "factor_ingest";
    const QUEUE: &str = QUEUE;
    const MAX_ATTEMPTS: u32 = ATTEMPTS;
}

/// Loads organisational units.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitSync(pub Load);

impl Job for UnitSync {
    const KIND: &str = "unit_sync";
    const QUEUE: &str = QUEUE;
    const MAX_ATTEMPTS: u32 = ATTEMPTS;
}

/// Computes emissions from current entries and factors: of one entry type, or of all of a module.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EmissionRecalc(pub Load);

impl Job for EmissionRecalc {
    const KIND: &str = "emission_recalc";
    const QUEUE: &str = QUEUE;
    const MAX_ATTEMPTS: u32 = ATTEMPTS;
}

/// Deletes old versions, files that are not needed, and what processes left behind: one recurring job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Upkeep {}

impl Job for Upkeep {
    const KIND: &str = "ingest_upkeep";
    const QUEUE: &str = QUEUE;
}

impl Load {
    /// The kind of the job that does it.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.lane.target, self.lane.method) {
            (Target::Entries, Method::Computed) => EmissionRecalc::KIND,
            (Target::Entries, _) => CsvIngest::KIND,
            (Target::Factors, _) => FactorIngest::KIND,
            (Target::Units, _) => UnitSync::KIND,
        }
    }

    /// The job that does it, in its lane.
    pub(crate) fn job(&self) -> Result<NewJob, pitwheel::Error> {
        let job = match self.kind() {
            EmissionRecalc::KIND => NewJob::of(&EmissionRecalc(self.clone())),
            CsvIngest::KIND => NewJob::of(&CsvIngest(self.clone())),
            FactorIngest::KIND => NewJob::of(&FactorIngest(self.clone())),
            _ => NewJob::of(&UnitSync(self.clone())),
        };
        Ok(job.lane(pitwheel::Lane::of(self.lane.key())?))
    }
}
