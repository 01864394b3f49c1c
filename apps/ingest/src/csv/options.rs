//! How a file is to be read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::csv::error::CsvError;

/// How a file is to be read. The default detects what it can, and loads all rows or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CsvOptions {
    /// One character; `None`: the one of `,`, `;`, tab and `|` that fits the header best.
    pub delimiter: Option<char>,
    /// The name of an encoding, as in HTML; `None`: by its byte order mark, else UTF-8, else UTF-16 or windows-1252 by the first bytes.
    pub encoding: Option<String>,
    /// Numbers are written as in `1234,5`.
    pub decimal_comma: bool,
    /// Columns that are not known are left out. Otherwise they are an error.
    pub ignore_unknown_columns: bool,
    /// Rows that are wrong are rejected and the others are loaded. Otherwise one wrong row is an error.
    pub skip_bad_rows: bool,
    /// The column that each of these names in the header stands for.
    pub columns: BTreeMap<String, String>,
}

impl CsvOptions {
    /// The delimiter that is named, as a byte.
    pub(crate) fn delimiter_byte(&self) -> Result<Option<u8>, CsvError> {
        let Some(named) = self.delimiter else { return Ok(None) };
        let byte = u8::try_from(named).ok().filter(|byte| byte.is_ascii() && !b"\"\r\n\0".contains(byte));
        let refused =
            || CsvError::Option(format!("delimiter `{named}` cannot be used: choose an ASCII character"));
        byte.ok_or_else(refused).map(Some)
    }
}
