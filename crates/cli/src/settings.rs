//! The settings of a call: flags override environment variables, and these override a file.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Deserialize;

use crate::exit::CommandError;
use crate::output::OutputFormat;
use crate::output::log::LogFormat;

/// The settings of this call.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// `None` when no setting names a database.
    pub(crate) database: Option<Database>,
    pub(crate) output: OutputFormat,
    pub(crate) log_format: LogFormat,
}

/// A database, and where its URL comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

/// Where the URL of a database comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment,
    File(PathBuf),
    /// No setting: `pitwheel dev` or `pitwheel demo` runs this database now.
    Running,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("--database-url"),
            Origin::Environment => f.write_str("DATABASE_URL"),
            Origin::File(path) => write!(f, "`{}`", path.display()),
            Origin::Running => f.write_str("`pitwheel dev`"),
        }
    }
}

/// The contents of a settings file.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    database_url: Option<String>,
    output: Option<OutputFormat>,
    log_format: Option<LogFormat>,
}

impl Settings {
    /// Combines flags, environment and file. An unreadable or invalid file is an error even if flags override all of it.
    pub(crate) fn load(
        url: Option<String>,
        output: Option<OutputFormat>,
        log_format: Option<LogFormat>,
    ) -> Result<Settings, CommandError> {
        let (path, file) = read_file()?;
        let environment_url = variable("DATABASE_URL")?;
        let named = |url: Option<String>, origin| url.map(|url| Database { url, origin });
        let database = named(url, Origin::Flag)
            .or_else(|| named(environment_url, Origin::Environment))
            .or_else(|| named(file.database_url, Origin::File(path)));
        let environment_output = choice("PITWHEEL_OUTPUT")?;
        let environment_log_format = choice("PITWHEEL_LOG_FORMAT")?;
        Ok(Settings {
            database,
            output: output.or(environment_output).or(file.output).unwrap_or_default(),
            log_format: log_format.or(environment_log_format).or(file.log_format).unwrap_or_default(),
        })
    }

    pub(crate) fn json(&self) -> bool {
        self.output == OutputFormat::Json
    }
}

/// An environment variable; `None` when it is empty or not set.
fn variable(name: &str) -> Result<Option<String>, CommandError> {
    let text = std::env::var_os(name).map(OsString::into_string).transpose();
    let text = text.map_err(|_| CommandError::usage(format!("{name} is not UTF-8: set it to valid text")))?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// An environment variable that must be one of a few values.
fn choice<T: ValueEnum>(name: &str) -> Result<Option<T>, CommandError> {
    let Some(word) = variable(name)? else { return Ok(None) };
    let chosen = T::from_str(&word, false).map_err(|_| {
        let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let words: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        CommandError::usage(format!("{name} is `{word}`: it must be {}", words.join(" or ")))
    })?;
    Ok(Some(chosen))
}

/// The first settings file that exists, and its contents.
fn read_file() -> Result<(PathBuf, File), CommandError> {
    for path in [Some(PathBuf::from("pitwheel.toml")), user_file()].into_iter().flatten() {
        match fs::read_to_string(&path) {
            Ok(text) => return parse(&path, &text).map(|file| (path, file)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                return Err(CommandError::usage(format!("`{}` cannot be read: {error}", path.display())));
            }
        }
    }
    Ok(Default::default())
}

fn user_file() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let configuration = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(configuration.join("pitwheel/config.toml"))
}

fn parse(path: &Path, text: &str) -> Result<File, CommandError> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let message = error.message().trim().replace('\n', ", ");
        CommandError::usage(format!("`{}`, line {line}: {message}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        parse(Path::new("pitwheel.toml"), text)
            .map_or_else(|stop| stop.to_string(), |file| format!("{file:?}"))
    }

    #[test]
    fn a_file_may_set_everything_or_nothing() {
        let full = File {
            database_url: Some("postgres://here/it".to_owned()),
            output: Some(OutputFormat::Json),
            log_format: Some(LogFormat::Json),
        };
        let text = "database_url = \"postgres://here/it\"\noutput = \"json\"\nlog_format = \"json\"\n";
        assert_eq!(parse(Path::new("x"), text).ok(), Some(full));
        assert_eq!(parse(Path::new("x"), "# nothing\n").ok(), Some(File::default()));
    }

    #[test]
    fn the_error_for_an_invalid_file_names_the_line() {
        let unknown = problem("output = \"json\"\n\ndatabase = \"x\"\n");
        assert!(unknown.starts_with("`pitwheel.toml`, line 3: unknown field `database`"), "{unknown}");
        let word = problem("\noutput = \"xml\"\n");
        assert!(
            word.starts_with("`pitwheel.toml`, line 2: ") && word.contains("`table` or `json`"),
            "{word}"
        );
        let broken = problem("a = 1\nb = [\n");
        assert!(broken.starts_with("`pitwheel.toml`, line "), "{broken}");
    }
}
