//! Pages of long lists.

use clap::Args;

use crate::output::print_message;

/// The page of a list to show.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Only ids below this one: use the last id of the previous page
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<i64>,
    /// The number of lines, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl PageArgs {
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// The `--before` of the next page; `None` after the last page, which is the first one that is not full.
    pub(crate) fn next(&self, ids: impl ExactSizeIterator<Item = i64>) -> Option<i64> {
        if ids.len() == self.limit() { ids.last() } else { None }
    }
}

/// Prints how to list the next page, if there may be one.
pub(crate) fn print_next_page(next: Option<i64>) {
    if let Some(next) = next {
        print_message(&format!("there may be more: add `--before {next}` for the next page"));
    }
}
