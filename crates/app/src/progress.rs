//! A progress bar on a terminal; nothing elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on a terminal; nothing elsewhere.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// A bar that is full at `total`.
    pub fn new(total: u64) -> Progress {
        Progress(std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("  [{bar:50}] {human_pos} of {human_len}  {msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style.progress_chars("=> "))
        }))
    }

    /// Moves the bar.
    pub fn reached(&self, done: u64, message: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(message);
            bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
