//! Reading CSV: encoding, delimiter, header, rows. Memory is bounded whatever the file holds, and every error names its line.

pub(crate) mod columns;
mod decode;
mod delimiter;
mod error;
mod header;
mod options;
mod records;
mod rows;
mod value;
mod write;

pub use self::error::CsvError;
pub use self::options::CsvOptions;
pub(crate) use self::rows::{Batch, Rejected, Rows};
pub(crate) use self::write::write_record;
