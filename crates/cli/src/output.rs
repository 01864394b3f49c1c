//! What a command writes: data to stdout, messages and logs to stderr.

pub(crate) mod json;
pub(crate) mod log;
mod print;
pub(crate) mod table;
mod text;

pub(crate) use print::{OutputFormat, print, print_error, print_json, print_message};
pub(crate) use text::visible;
