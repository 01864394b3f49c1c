//! The rows of a file, one at a time, in buffers of fixed size.

use std::io::Read;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use crate::csv::decode::Text;
use crate::csv::error::CsvError;

/// The largest row. A quote that is never closed makes one row of the rest of the file.
const ROW_BYTES_MAX: usize = 1024 * 1024;
/// The most columns of a row.
const COLUMNS_MAX: usize = 1000;

/// The rows of a text.
pub(crate) struct Records<R> {
    text: Text<R>,
    /// Where in the chunk of the text the next row begins.
    at: usize,
    parser: Reader,
    lines: Lines,
    fields: Box<[u8]>,
    ends: Box<[usize]>,
    has_ended: bool,
}

/// The line that the parser has reached. The parser itself counts `\n` only, but ends rows at `\r` too, and rows need lines of
/// their own: the line is their key.
struct Lines {
    line: u64,
    /// The last byte was `\r`: a `\n` belongs to the same line end.
    after_cr: bool,
}

impl Lines {
    /// Counts the line ends of what the parser has read of a row. `first` becomes the line where the row begins, after blank lines.
    fn pass_row(&mut self, bytes: &[u8], first: &mut Option<u64>) {
        let mut rest = bytes;
        if first.is_none() {
            let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.pass(&bytes[..blank]);
            rest = &bytes[blank..];
            *first = (!rest.is_empty()).then_some(self.line);
        }
        self.pass(rest);
    }

    fn pass(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        let count = |end: u8| bytes.iter().filter(|byte| **byte == end).count();
        let returns = count(b'\r');
        let pairs = if returns > 0 { bytes.windows(2).filter(|two| *two == b"\r\n").count() } else { 0 };
        let pairs = pairs + usize::from(self.after_cr && bytes[0] == b'\n');
        self.line += (count(b'\n') + returns - pairs) as u64;
        self.after_cr = *last == b'\r';
    }
}

/// A row.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    /// The line where it begins.
    pub(crate) line: u64,
    text: &'a str,
    ends: &'a [usize],
}

impl<'a> Record<'a> {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The field at a position; empty if the row is shorter.
    pub(crate) fn get(&self, at: usize) -> &'a str {
        let start = if at == 0 { Some(0) } else { self.ends.get(at - 1).copied() };
        let range = start.zip(self.ends.get(at).copied());
        range.and_then(|(from, to)| self.text.get(from..to)).unwrap_or_default()
    }

    pub(crate) fn fields(self) -> impl Iterator<Item = &'a str> {
        (0..self.len()).map(move |at| self.get(at))
    }
}

impl<R: Read> Records<R> {
    pub(crate) fn new(text: Text<R>, delimiter: u8) -> Records<R> {
        Records {
            text,
            at: 0,
            parser: ReaderBuilder::new().delimiter(delimiter).build(),
            lines: Lines { line: 1, after_cr: false },
            fields: vec![0; ROW_BYTES_MAX].into_boxed_slice(),
            ends: vec![0; COLUMNS_MAX].into_boxed_slice(),
            has_ended: false,
        }
    }

    /// Bytes of the file so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.text.bytes_read()
    }

    /// The next row; blank lines are left out.
    pub(crate) fn read(&mut self) -> Result<Option<Record<'_>>, CsvError> {
        let (mut len, mut count, mut first_line) = (0, 0, None);
        loop {
            if !self.has_ended && self.at == self.text.chunk().len() {
                self.refill()?;
            }
            // The last row may lack its newline. A further newline ends it, or stays inside of a quote that is never closed.
            let input = if self.has_ended { &b"\n"[..] } else { &self.text.chunk()[self.at..] };
            let (result, read, written, ended) =
                self.parser.read_record(input, &mut self.fields[len..], &mut self.ends[count..]);
            self.lines.pass_row(&input[..read], &mut first_line);
            let line = first_line.unwrap_or(self.lines.line);
            (len, count) = (len + written, count + ended);
            if !self.has_ended {
                self.at += read;
            }
            match result {
                ReadRecordResult::Record => return self.record(len, count, line).map(Some),
                ReadRecordResult::InputEmpty if self.has_ended && len + count > 0 => {
                    return Err(CsvError::Unclosed { line });
                }
                ReadRecordResult::InputEmpty if self.has_ended => return Ok(None),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => {
                    return Err(CsvError::TooLong { line, max: ROW_BYTES_MAX });
                }
                ReadRecordResult::OutputEndsFull => {
                    return Err(CsvError::TooWide { line, max: COLUMNS_MAX });
                }
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    fn refill(&mut self) -> Result<(), CsvError> {
        self.at = 0;
        let line = self.lines.line;
        match self.text.fill() {
            Ok(more) => self.has_ended = !more,
            Err(CsvError::Encoding { encoding, .. }) => return Err(CsvError::Encoding { line, encoding }),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn record(&self, len: usize, count: usize, line: u64) -> Result<Record<'_>, CsvError> {
        // The text is UTF-8 and is cut at ASCII only.
        let text = std::str::from_utf8(&self.fields[..len])
            .map_err(|_| CsvError::Encoding { line, encoding: self.text.encoding() })?;
        Ok(Record { line, text, ends: &self.ends[..count] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u64, Vec<String>)>, CsvError> {
        let mut records = Records::new(Text::open(bytes, None)?, b',');
        let mut all = Vec::new();
        while let Some(record) = records.read()? {
            all.push((record.line, record.fields().map(str::to_owned).collect()));
        }
        Ok(all)
    }

    #[test]
    fn a_row_knows_the_line_where_it_begins() -> Result<(), CsvError> {
        for newline in ["\n", "\r\n", "\r"] {
            let text = ["a,b", "", "1,\"two", "lines\"", "\"\"\"q\"\"\",", "last,x"].join(newline);
            let rows = read(text.as_bytes())?;
            let lines: Vec<u64> = rows.iter().map(|(line, _)| *line).collect();
            assert_eq!(lines, [1, 3, 5, 6], "{newline:?}");
            assert_eq!(rows[1].1, ["1", &format!("two{newline}lines")]);
            assert_eq!(rows[2].1, ["\"q\"", ""]);
            assert_eq!(rows[3].1, ["last", "x"]);
        }
        Ok(())
    }

    #[test]
    fn no_two_rows_have_the_same_line() -> Result<(), CsvError> {
        // Stray carriage returns end rows too, in blank lines and at the borders of fields.
        let text = "a,b\n1,2\r3,4\r5,6\r\n\r\r7,\"8\r\"\n\"9\r\",\"\n0\"\r\n\n\r1,2\r";
        let rows = read(text.as_bytes())?;
        let lines: Vec<u64> = rows.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 7, 9, 14]);
        assert_eq!(rows.last().map(|(_, fields)| fields.join("+")), Some("1+2".to_owned()));
        Ok(())
    }

    #[test]
    fn rows_that_are_too_large_end_in_an_error_with_their_line() {
        let long = [b"a,b\n".to_vec(), vec![b'x'; 3 * ROW_BYTES_MAX]].concat();
        assert!(matches!(read(&long), Err(CsvError::TooLong { line: 2, .. })));
        let wide = format!("a,b\n{}\n", ",".repeat(10_000));
        assert!(matches!(read(wide.as_bytes()), Err(CsvError::TooWide { line: 2, .. })));
        let widest = ",".repeat(COLUMNS_MAX - 1);
        assert!(read(widest.as_bytes()).is_ok_and(|rows| rows[0].1.len() == COLUMNS_MAX));
    }

    #[test]
    fn a_quote_that_is_never_closed_is_an_error() {
        for text in ["a,b\n1,\"two\nthree\n", "a,b\n\"", "a,b\n1,\""] {
            assert!(matches!(read(text.as_bytes()), Err(CsvError::Unclosed { line: 2 })), "{text:?}");
        }
        assert!(read(b"a,b\n1,\"two\"").is_ok_and(|rows| rows.len() == 2));
    }

    #[test]
    fn a_wrong_byte_is_found_in_its_line() {
        let text = [b"a,b\n".repeat(20_000), b"x,\xff\n".to_vec()].concat();
        assert!(matches!(read(&text), Err(CsvError::Encoding { line: 20_001, encoding: "UTF-8" })));
    }
}
