//! The filter of `pitwheel jobs list`, `retry`, `cancel`, `delete` and `reschedule`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pitwheel::{Filter, State};

/// Selects jobs that match all given values.
#[derive(Debug, Args)]
pub(super) struct FilterArgs {
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs with this key
    #[arg(long)]
    key: Option<String>,
    /// Only jobs in this state
    #[arg(long, value_parser = PossibleValuesParser::new(State::ALL.map(State::as_str)).try_map(|word| word.parse::<State>()))]
    pub(super) state: Option<State>,
}

impl FilterArgs {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_none() && self.kind.is_none() && self.key.is_none() && self.state.is_none()
    }

    pub(super) fn filter(self) -> Filter {
        let FilterArgs { queue, kind, key, state } = self;
        Filter { queue, kind, key, state, ..Filter::default() }
    }
}
