//! The rows of a file, checked, in batches that `COPY` takes.

use std::io::Read;

use crate::csv::columns::Column;
use crate::csv::decode::Text;
use crate::csv::delimiter;
use crate::csv::error::CsvError;
use crate::csv::header::{self, Mapping};
use crate::csv::options::CsvOptions;
use crate::csv::records::{Record, Records};
use crate::csv::value;
use crate::csv::write::write_record;

/// Bytes of a batch. Two or three of them are in memory at a time.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that are kept of a rejected row.
const RECORD_BYTES_MAX: usize = 64 * 1024;

/// The rows of a file.
pub(crate) struct Rows<R> {
    records: Records<R>,
    mapping: Mapping,
    columns: &'static [Column],
    decimal_comma: bool,
    delimiter: u8,
    encoding: &'static str,
}

/// Some rows, in the text format of `COPY`.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) copy: Vec<u8>,
    /// The number of rows in `copy`.
    pub(crate) rows: u64,
    pub(crate) rejected: Vec<Rejected>,
    /// Bytes of the file up to the end of this batch.
    pub(crate) bytes_read: u64,
}

/// A row that cannot be loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    pub(crate) line: u64,
    /// `None`: the row as a whole.
    pub(crate) column: Option<&'static str>,
    pub(crate) reason: String,
    /// The row, as CSV.
    pub(crate) record: String,
}

impl<R: Read> Rows<R> {
    /// Detects encoding and delimiter, and reads the header.
    pub(crate) fn open(
        input: R,
        columns: &'static [Column],
        options: &CsvOptions,
    ) -> Result<Rows<R>, CsvError> {
        let named = options.delimiter_byte()?;
        let text = Text::open(input, options.encoding.as_deref())?;
        let encoding = text.encoding();
        let delimiter = named.unwrap_or_else(|| delimiter::detect(text.chunk(), columns, options));
        let mut records = Records::new(text, delimiter);
        let header = records.read()?.ok_or(CsvError::Empty)?;
        let mapping = header::map(header, columns, options)?;
        Ok(Rows { records, mapping, columns, decimal_comma: options.decimal_comma, delimiter, encoding })
    }

    /// What was detected, for people.
    pub(crate) fn format(&self) -> String {
        let delimiter =
            if self.delimiter == b'\t' { "tab".to_owned() } else { char::from(self.delimiter).to_string() };
        format!("{}, delimiter `{delimiter}`", self.encoding)
    }

    /// The next rows of a version; `None` after the last.
    pub(crate) fn next_batch(&mut self, version: i64) -> Result<Option<Batch>, CsvError> {
        let mut batch = Batch { copy: Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 8), ..Batch::default() };
        let (version, mut rejected_bytes) = (version.to_string(), 0);
        while batch.copy.len() + rejected_bytes < BATCH_BYTES {
            let Some(record) = self.records.read()? else { break };
            let start = batch.copy.len();
            let written = write_row(
                record,
                &self.mapping,
                self.columns,
                (&version, self.decimal_comma),
                &mut batch.copy,
            );
            match written {
                Ok(()) => batch.rows += 1,
                Err((column, reason)) => {
                    batch.copy.truncate(start);
                    let rejected = Rejected { line: record.line, column, reason, record: as_csv(record) };
                    rejected_bytes += rejected.record.len();
                    batch.rejected.push(rejected);
                }
            }
        }
        batch.bytes_read = self.records.bytes_read();
        Ok((batch.rows > 0 || !batch.rejected.is_empty()).then_some(batch))
    }
}

type RowError = (Option<&'static str>, String);

fn write_row(
    record: Record<'_>,
    mapping: &Mapping,
    columns: &'static [Column],
    (version, decimal_comma): (&str, bool),
    out: &mut Vec<u8>,
) -> Result<(), RowError> {
    if record.len() != mapping.width {
        let problem = format!("the row has {} columns, the header has {}", record.len(), mapping.width);
        return Err((None, problem));
    }
    out.extend_from_slice(version.as_bytes());
    out.push(b'\t');
    out.extend_from_slice(record.line.to_string().as_bytes());
    for (column, at) in columns.iter().zip(&mapping.positions) {
        out.push(b'\t');
        let field = at.map_or("", |at| record.get(at));
        value::write(field, column, decimal_comma, out).map_err(|reason| (Some(column.name), reason))?;
    }
    out.push(b'\n');
    Ok(())
}

/// The row as CSV, without NUL, which Postgres cannot store, and cut where it is too long to keep.
fn as_csv(record: Record<'_>) -> String {
    let mut text = String::new();
    write_record(record.fields(), &mut text);
    text.truncate(text.trim_end_matches('\n').len());
    if text.len() > RECORD_BYTES_MAX {
        let cut = (0..=RECORD_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(cut);
        text.push('…');
    }
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::columns::ENTRIES;

    fn batches(text: &str) -> Result<Vec<Batch>, CsvError> {
        let mut rows = Rows::open(text.as_bytes(), &ENTRIES, &CsvOptions::default())?;
        let mut all = Vec::new();
        while let Some(batch) = rows.next_batch(7)? {
            all.push(batch);
        }
        Ok(all)
    }

    #[test]
    fn a_row_is_loaded_or_rejected_with_line_and_column() -> Result<(), CsvError> {
        let text = "unit;quantity;category;measure;date\n\
            a;1.5;power;kWh;2025-01-31\n\
            b;many;power;kWh;\n\
            ;1;power;kWh;\n\
            c;1;power\n\
            \"d\t\";2;power;kWh;\n";
        let batches = batches(text)?;
        assert_eq!(batches.len(), 1);
        let copy = String::from_utf8_lossy(&batches[0].copy);
        assert_eq!(
            copy,
            "7\t2\ta\tpower\t1.5\tkWh\t2025-01-31\t\\N\t\\N\t\\N\t\\N\t\\N\n\
             7\t6\td\tpower\t2\tkWh\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\n"
        );
        let rejected: Vec<_> = batches[0].rejected.iter().map(|row| (row.line, row.column)).collect();
        assert_eq!(rejected, [(3, Some("quantity")), (4, Some("unit")), (5, None)]);
        assert_eq!(batches[0].rejected[0].record, "b,many,power,kWh,");
        assert!(batches[0].rejected[0].reason.contains("`many`"), "{}", batches[0].rejected[0].reason);
        Ok(())
    }

    #[test]
    fn a_large_file_comes_in_batches_of_bounded_size() -> Result<(), CsvError> {
        let text = format!("unit,category,quantity,measure\n{}", "unit,category,1,kWh\n".repeat(400_000));
        let batches = batches(&text)?;
        assert!(batches.len() > 1 && batches.iter().all(|batch| batch.copy.len() < BATCH_BYTES + 1000));
        assert_eq!(batches.iter().map(|batch| batch.rows).sum::<u64>(), 400_000);
        assert_eq!(batches.last().map(|batch| batch.bytes_read), Some(text.len() as u64));
        Ok(())
    }
}
