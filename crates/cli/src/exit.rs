//! How a command ends: its exit code, and the one line that says why.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output;

/// Exit codes other than 0; `pitwheel --help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Failure = 1,
    Usage = 2,
    NotFound = 3,
    SchemaBehind = 5,
}

/// An end other than success, by our own decision.
#[derive(Debug)]
pub(crate) struct Stop {
    code: Code,
    /// Empty when all has been said.
    message: String,
}

impl Stop {
    pub(crate) fn failure(message: impl Into<String>) -> Stop {
        Stop::with(Code::Failure, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Stop {
        Stop::with(Code::Usage, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Stop {
        Stop::with(Code::NotFound, message)
    }

    /// Everything has been said; only the code is left to give.
    pub(crate) fn silent(code: Code) -> Stop {
        Stop::with(code, "")
    }

    fn with(code: Code, message: impl Into<String>) -> Stop {
        Stop { code, message: message.into() }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Stop {}

/// Says what went wrong, if anything did, and gives the exit code.
pub(crate) fn code(ended: anyhow::Result<()>) -> ExitCode {
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    if reader_has_left(&error) {
        return ExitCode::SUCCESS;
    }
    let message = format!("{error:#}");
    if !message.is_empty() {
        output::say_error(&message);
    }
    ExitCode::from(code_of(&error) as u8)
}

/// `pitwheel jobs list | head` has what it wanted.
fn reader_has_left(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<io::Error>(), Some(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

fn code_of(error: &anyhow::Error) -> Code {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        return stop.code;
    }
    error.downcast_ref::<pitwheel::Error>().map_or(Code::Failure, engine_code)
}

/// What an error of the engine means to a script.
pub(crate) fn engine_code(error: &pitwheel::Error) -> Code {
    use pitwheel::Error;
    match error {
        Error::NotFound(..) => Code::NotFound,
        Error::SchemaBehind { .. } => Code::SchemaBehind,
        Error::Url(_) | Error::Payload { .. } | Error::Invalid(_) => Code::Usage,
        _ => Code::Failure,
    }
}
