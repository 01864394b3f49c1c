//! The filter that `pitwheel jobs list` and the changes take.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pitwheel::{Filter, State};

/// What jobs have in common.
#[derive(Debug, Args)]
pub(super) struct FilterArgs {
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this key
    #[arg(long)]
    key: Option<String>,
    /// Only this state
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
