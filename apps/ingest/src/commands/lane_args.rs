//! The flags that name a lane, or some.

use clap::Args;
use pitwheel_ingest::{Lane, LaneFilter, Method, Target};

/// The parts of a lane that are the same for every method.
#[derive(Debug, Args)]
pub(crate) struct LaneArgs {
    /// The module, such as `travel`
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    /// The data entry type within the module, such as `flights`
    #[arg(long = "type", value_name = "NAME")]
    entry_type: Option<String>,
    /// What the data is
    #[arg(long, value_enum, default_value = "entries")]
    target: Target,
    /// The year
    #[arg(long)]
    year: Option<i16>,
}

impl LaneArgs {
    pub(crate) fn lane(self, method: Method) -> Lane {
        let LaneArgs { module, entry_type, target, year } = self;
        Lane { module, entry_type, target, method, year }
    }
}

/// Which lanes to show; all, if nothing is given.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only this module
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    /// Only this data entry type
    #[arg(long = "type", value_name = "NAME")]
    entry_type: Option<String>,
    /// Only this target
    #[arg(long, value_enum)]
    target: Option<Target>,
    /// Only this method
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Only this year
    #[arg(long)]
    year: Option<i16>,
}

impl FilterArgs {
    pub(crate) fn filter(self) -> LaneFilter {
        let FilterArgs { module, entry_type, target, method, year } = self;
        LaneFilter { module, entry_type, target, method, year }
    }
}
