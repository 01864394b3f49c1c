//! What a command writes: data to stdout, messages and logs to stderr.

pub(crate) mod json;
pub(crate) mod log;
mod print;
pub(crate) mod table;
mod text;

pub(crate) use print::{Output, print, print_json, say, say_error};
pub(crate) use text::visible;
