//! Long lists, a page at a time.

use clap::Args;

use crate::output::say;

/// Which page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Only ids below this one: the last id of the page before
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<i64>,
    /// How many, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl PageArgs {
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Where the next page begins: a page that is not full is the last.
    pub(crate) fn next(&self, ids: impl ExactSizeIterator<Item = i64>) -> Option<i64> {
        if ids.len() == self.limit() { ids.last() } else { None }
    }
}

/// Says how to see more of a list, if there may be more.
pub(crate) fn say_next(next: Option<i64>) {
    if let Some(next) = next {
        say(&format!("there may be more: add `--before {next}` for the next page"));
    }
}
