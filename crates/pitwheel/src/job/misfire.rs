//! What becomes of planned times that were missed.

use crate::error::Error;

/// What becomes of planned times at which a recurring job could not run: the workers were down or busy, or a run took longer than
/// the time to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misfire {
    /// They are not run, and counted as skipped. A run that is so late that the next planned time has come is not started.
    Skip,
    /// One run is made for all of them.
    #[default]
    One,
    /// Each is run, one after the other.
    All,
}

impl Misfire {
    /// The name used in tables, the CLI and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Misfire::Skip => "skip",
            Misfire::One => "one",
            Misfire::All => "all",
        }
    }
}

impl std::str::FromStr for Misfire {
    type Err = Error;

    fn from_str(word: &str) -> Result<Misfire, Error> {
        let found = [Misfire::Skip, Misfire::One, Misfire::All].into_iter().find(|one| one.as_str() == word);
        found.ok_or_else(|| Error::Invalid(format!("misfire `{word}` is not one of skip, one, all")))
    }
}
