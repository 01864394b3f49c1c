//! Rejected rows as CSV, to be corrected and sent again.

use crate::csv::write_record;
use crate::store::RejectedRow;

/// The header of the file.
pub const HEADER: &str = "line,column,reason,row\n";

/// The rows, without the header.
pub fn csv(rows: &[RejectedRow]) -> String {
    let mut text = String::new();
    for row in rows {
        let line = row.line.to_string();
        let column = row.column.as_deref().unwrap_or_default();
        write_record([&*line, column, &row.reason, &row.record].into_iter(), &mut text);
    }
    text
}
