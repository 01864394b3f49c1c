//! Why a file cannot be read.

/// Why a file cannot be read. Nothing was loaded from it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The file cannot be read from its disk.
    #[error("the file cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// There is nothing in it.
    #[error("the file is empty: its first line must name the columns")]
    Empty,
    /// It is no text.
    #[error("the file is {0}, not CSV: save it as CSV and upload that")]
    NotText(&'static str),
    /// The name of an encoding is not known.
    #[error("encoding `{0}` is not known: use for example `utf-8`, `utf-16le` or `windows-1252`")]
    UnknownEncoding(String),
    /// Some bytes are not text in the encoding.
    #[error("line {line} is not {encoding}: name the encoding of the file, for example `windows-1252`")]
    Encoding {
        /// The line with the first wrong byte.
        line: u64,
        /// The encoding that was named or detected.
        encoding: &'static str,
    },
    /// A row has too many bytes.
    #[error(
        "line {line} begins a row of more than {max} bytes: a quote may be missing, or the file is not CSV"
    )]
    TooLong {
        /// Where the row begins.
        line: u64,
        /// The limit.
        max: usize,
    },
    /// A row has too many columns.
    #[error("line {line} has more than {max} columns: check the delimiter")]
    TooWide {
        /// The line.
        line: u64,
        /// The limit.
        max: usize,
    },
    /// A quote is never closed.
    #[error("line {line} begins a row with a quote that is never closed")]
    Unclosed {
        /// Where the row begins.
        line: u64,
    },
    /// The header does not fit.
    #[error("line {line}: {problem}")]
    Header {
        /// The line of the header.
        line: u64,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// An option cannot be used.
    #[error("{0}")]
    Option(String),
}
