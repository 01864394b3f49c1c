//! Bytes of a file as UTF-8, a chunk at a time.

use std::io::Read;

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

use crate::csv::error::CsvError;

/// Bytes that are read at a time. The first of them decide the encoding.
const CHUNK_BYTES: usize = 64 * 1024;
/// One byte of a legacy encoding is at most three of UTF-8.
const TEXT_BYTES: usize = 3 * CHUNK_BYTES + 16;

/// The text of a file.
pub(crate) struct Text<R> {
    input: R,
    encoding: &'static Encoding,
    decoder: Decoder,
    raw: Box<[u8]>,
    /// The part of `raw` that is not decoded yet.
    rest: std::ops::Range<usize>,
    has_ended: bool,
    text: Box<[u8]>,
    len: usize,
    bytes_read: u64,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Open,
    /// All of it was decoded.
    Finished,
    /// The next bytes are not text.
    Malformed,
}

impl<R: Read> Text<R> {
    /// Reads the first bytes and detects the encoding, unless one is named. The first chunk is ready then.
    pub(crate) fn open(mut input: R, named: Option<&str>) -> Result<Text<R>, CsvError> {
        let mut raw = vec![0; CHUNK_BYTES].into_boxed_slice();
        let (len, has_ended) = read_full(&mut input, &mut raw)?;
        let first = &raw[..len];
        if first.is_empty() {
            return Err(CsvError::Empty);
        }
        let encoding = match named {
            Some(name) => Encoding::for_label(name.as_bytes())
                .ok_or_else(|| CsvError::UnknownEncoding(name.to_owned()))?,
            None => detect(first, has_ended)?,
        };
        let mut text = Text {
            input,
            encoding,
            decoder: encoding.new_decoder_with_bom_removal(),
            raw,
            rest: 0..len,
            has_ended,
            text: vec![0; TEXT_BYTES].into_boxed_slice(),
            len: 0,
            bytes_read: len as u64,
            state: State::Open,
        };
        text.fill()?;
        Ok(text)
    }

    /// The chunk that [`Text::fill`] has made ready.
    pub(crate) fn chunk(&self) -> &[u8] {
        &self.text[..self.len]
    }

    /// Bytes of the file so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The name of the encoding.
    pub(crate) fn encoding(&self) -> &'static str {
        self.encoding.name()
    }

    /// Makes the next chunk ready. False: there is none. The text before a wrong byte is returned before the error.
    pub(crate) fn fill(&mut self) -> Result<bool, CsvError> {
        loop {
            match self.state {
                State::Open => {}
                State::Finished => {
                    self.len = 0;
                    return Ok(false);
                }
                // The reader of the rows knows the line.
                State::Malformed => return Err(CsvError::Encoding { line: 0, encoding: self.encoding() }),
            }
            if self.rest.is_empty() && !self.has_ended {
                let (len, has_ended) = read_full(&mut self.input, &mut self.raw)?;
                (self.rest, self.has_ended) = (0..len, has_ended);
                self.bytes_read += len as u64;
            }
            let source = &self.raw[self.rest.clone()];
            let (result, read, written) =
                self.decoder.decode_to_utf8_without_replacement(source, &mut self.text, self.has_ended);
            self.rest.start += read;
            match result {
                DecoderResult::InputEmpty if self.has_ended => self.state = State::Finished,
                DecoderResult::InputEmpty | DecoderResult::OutputFull => {}
                DecoderResult::Malformed(..) => self.state = State::Malformed,
            }
            if written > 0 {
                self.len = written;
                return Ok(true);
            }
        }
    }
}

/// Fills the buffer. True: the input has ended.
fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> Result<(usize, bool), CsvError> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => return Ok((len, true)),
            Ok(read) => len += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((len, false))
}

/// The encoding of a file that begins with these bytes.
fn detect(first: &[u8], is_all: bool) -> Result<&'static Encoding, CsvError> {
    let kinds: [(&[u8], &str); 3] =
        [(b"PK\x03\x04", "a ZIP or Excel file"), (b"%PDF", "a PDF"), (b"\x1f\x8b", "compressed")];
    if let Some((_, kind)) = kinds.iter().find(|(magic, _)| first.starts_with(magic)) {
        return Err(CsvError::NotText(kind));
    }
    if let Some((encoding, _)) = Encoding::for_bom(first) {
        return Ok(encoding);
    }
    let zeros = |offset: usize| first.iter().skip(offset).step_by(2).filter(|byte| **byte == 0).count();
    // ASCII in UTF-16 has a zero in every second byte.
    let (even, odd) = (zeros(0), zeros(1));
    if odd > first.len() / 4 && even == 0 {
        return Ok(UTF_16LE);
    }
    if even > first.len() / 4 && odd == 0 {
        return Ok(UTF_16BE);
    }
    match std::str::from_utf8(first) {
        Ok(_) => Ok(UTF_8),
        // A character may be cut off at the end of the chunk.
        Err(error) if error.error_len().is_none() && !is_all => Ok(UTF_8),
        Err(_) => Ok(WINDOWS_1252),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> (String, &'static str) {
        let mut text = Text::open(bytes, None).expect("text");
        let mut all = text.chunk().to_vec();
        while text.fill().expect("text") {
            all.extend_from_slice(text.chunk());
        }
        (String::from_utf8(all).expect("UTF-8"), text.encoding())
    }

    #[test]
    fn an_encoding_is_known_by_its_mark_or_its_first_bytes() {
        let utf16: Vec<u8> = "unit,Zürich".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut marked = vec![0xff, 0xfe];
        marked.extend_from_slice(&utf16);
        for (bytes, text, encoding) in [
            (&b"\xef\xbb\xbfunit,a"[..], "unit,a", "UTF-8"),
            ("unit,Zürich".as_bytes(), "unit,Zürich", "UTF-8"),
            (b"unit,Z\xfcrich", "unit,Zürich", "windows-1252"),
            (&utf16, "unit,Zürich", "UTF-16LE"),
            (&marked, "unit,Zürich", "UTF-16LE"),
        ] {
            assert_eq!(decoded(bytes), (text.to_owned(), encoding));
        }
    }

    #[test]
    fn a_character_across_two_chunks_is_whole() {
        let text = format!("{}ü{}", "x".repeat(CHUNK_BYTES - 1), "y".repeat(CHUNK_BYTES));
        assert_eq!(decoded(text.as_bytes()).0, text);
    }

    #[test]
    fn what_is_no_text_is_refused() {
        assert!(matches!(Text::open(&b""[..], None), Err(CsvError::Empty)));
        assert!(matches!(Text::open(&b"PK\x03\x04..."[..], None), Err(CsvError::NotText(_))));
        assert!(matches!(Text::open(&b"a"[..], Some("klingon")), Err(CsvError::UnknownEncoding(_))));
        let mut wrong = vec![b'a'; CHUNK_BYTES];
        wrong.push(0xff);
        let mut text = Text::open(&wrong[..], None).expect("text");
        assert!(matches!(text.fill(), Err(CsvError::Encoding { .. })));
    }
}
