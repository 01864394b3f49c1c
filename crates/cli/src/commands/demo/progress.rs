//! The progress of the demo: a bar on a terminal, some lines elsewhere.

use std::io::IsTerminal;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use crate::output::print_message;

/// How many lines to print without a terminal.
const LINES: u64 = 10;

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    lines: u64,
}

impl Progress {
    pub(super) fn new(total: u64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("  [{bar:50}] {human_pos} of {human_len}  {msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style.progress_chars("=> "))
        });
        Progress { bar, total, lines: 0 }
    }

    pub(super) fn reached(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            let rate = done as f64 / bar.elapsed().as_secs_f64().max(0.1);
            bar.set_message(format!("{} jobs/s", HumanCount(rate as u64)));
            bar.set_position(done);
            return;
        }
        let lines = done * LINES / self.total.max(1);
        if lines > self.lines {
            self.lines = lines;
            print_message(&format!("{} of {}", HumanCount(done), HumanCount(self.total)));
        }
    }

    /// Prints a message above the bar.
    pub(super) fn print_message(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_message(text)),
            None => print_message(text),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}
