//! The exit code of a command, and the line that explains a failure.

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

/// A failure with an exit code of its own.
#[derive(Debug)]
pub(crate) struct CommandError {
    code: Code,
    /// Empty when the reason has been printed already.
    message: String,
}

impl CommandError {
    pub(crate) fn failure(message: impl Into<String>) -> CommandError {
        CommandError::with(Code::Failure, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> CommandError {
        CommandError::with(Code::Usage, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> CommandError {
        CommandError::with(Code::NotFound, message)
    }

    /// A failure whose reason has been printed already.
    pub(crate) fn silent(code: Code) -> CommandError {
        CommandError::with(code, "")
    }

    fn with(code: Code, message: impl Into<String>) -> CommandError {
        CommandError { code, message: message.into() }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CommandError {}

/// Prints the error, if there is one, and returns the exit code.
pub(crate) fn code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if is_closed_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let message = format!("{error:#}");
    if !message.is_empty() {
        output::print_error(&message);
    }
    ExitCode::from(code_of(&error) as u8)
}

/// Whether the reader of stdout closed the pipe, as in `pitwheel jobs list | head`. That is a success.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<io::Error>(), Some(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

fn code_of(error: &anyhow::Error) -> Code {
    if let Some(error) = error.downcast_ref::<CommandError>() {
        return error.code;
    }
    error.downcast_ref::<pitwheel::Error>().map_or(Code::Failure, engine_code)
}

/// The exit code for an error of the engine.
pub(crate) fn engine_code(error: &pitwheel::Error) -> Code {
    use pitwheel::Error;
    match error {
        Error::NotFound(..) => Code::NotFound,
        Error::SchemaBehind { .. } => Code::SchemaBehind,
        Error::Url(_) | Error::Payload { .. } | Error::Invalid(_) => Code::Usage,
        _ => Code::Failure,
    }
}
