//! Which character separates the columns.

use csv_core::{ReadRecordResult, ReaderBuilder};

use crate::csv::columns::Column;
use crate::csv::header::is_known;
use crate::csv::options::CsvOptions;

const CANDIDATES: [u8; 4] = *b",;\t|";
/// A header is shorter; what is longer is refused when it is read.
const HEADER_BYTES: usize = 64 * 1024;
const HEADER_COLUMNS: usize = 1000;

/// The delimiter under which the first row has the most columns that are known, and among those the most columns.
pub(crate) fn detect(start: &[u8], columns: &[Column], options: &CsvOptions) -> u8 {
    let score = |delimiter: u8| {
        let names = first_row(start, delimiter);
        (names.iter().filter(|name| is_known(name, columns, options)).count(), names.len())
    };
    // Of several with the same score, the first.
    CANDIDATES.into_iter().rev().max_by_key(|delimiter| score(*delimiter)).unwrap_or(b',')
}

fn first_row(start: &[u8], delimiter: u8) -> Vec<String> {
    let mut parser = ReaderBuilder::new().delimiter(delimiter).build();
    let (mut fields, mut ends) = (vec![0; HEADER_BYTES], vec![0; HEADER_COLUMNS]);
    let (result, _, _, mut count) = parser.read_record(start, &mut fields, &mut ends);
    if result == ReadRecordResult::InputEmpty {
        // The row ends with the file.
        count += parser.read_record(&[], &mut fields, &mut ends[count..]).3;
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let fields = starts.zip(&ends).take(count).filter_map(|(from, to)| fields.get(from..*to));
    fields.map(|field| String::from_utf8_lossy(field).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::columns::ENTRIES;

    #[test]
    fn the_delimiter_is_the_one_that_fits_the_header() {
        for (start, delimiter) in [
            ("unit,category,quantity\n", b','),
            ("unit;category;quantity,measure;x\n", b';'),
            ("unit\tcategory\r\n", b'\t'),
            ("unit|category", b'|'),
            ("\"unit;a\",category\n", b','),
            ("something else", b','),
        ] {
            assert_eq!(detect(start.as_bytes(), &ENTRIES, &CsvOptions::default()), delimiter, "{start}");
        }
    }
}
