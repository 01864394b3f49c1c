//! Reads a body: decompressed, and never more of it than the limit.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::fetch::error::FetchError;
use crate::fetch::limits::BODY_BYTES_MAX;

/// The buffer of the brotli decoder.
const BROTLI_BUFFER: usize = 4096;

/// The bytes that were read, and refuses more than the limit: a small body may decompress to gigabytes.
struct Capped(Vec<u8>);

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > BODY_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Decoder {
    Plain(Capped),
    Gzip(MultiGzDecoder<Capped>),
    Brotli(Box<DecompressorWriter<Capped>>),
}

impl Decoder {
    /// For a `Content-Encoding`.
    fn new(encoding: &str) -> Result<Decoder, FetchError> {
        let sink = Capped(Vec::new());
        match encoding.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Decoder::Plain(sink)),
            "gzip" | "x-gzip" => Ok(Decoder::Gzip(MultiGzDecoder::new(sink))),
            "br" => Ok(Decoder::Brotli(Box::new(DecompressorWriter::new(sink, BROTLI_BUFFER)))),
            other => Err(FetchError::Encoding(format!("`{other}` was not asked for"))),
        }
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), FetchError> {
        let written = match self {
            Decoder::Plain(decoder) => decoder.write_all(chunk),
            Decoder::Gzip(decoder) => decoder.write_all(chunk),
            Decoder::Brotli(decoder) => decoder.write_all(chunk),
        };
        written.map_err(|error| refused(&error))
    }

    fn finish(self) -> Result<Vec<u8>, FetchError> {
        match self {
            Decoder::Plain(Capped(bytes)) => Ok(bytes),
            Decoder::Gzip(decoder) => {
                decoder.finish().map(|Capped(bytes)| bytes).map_err(|error| refused(&error))
            }
            Decoder::Brotli(mut decoder) => {
                decoder.close().map_err(|error| refused(&error))?;
                let decoded = decoder.into_inner();
                let Capped(bytes) = decoded.map_err(|_| FetchError::Encoding("it is cut off".into()))?;
                Ok(bytes)
            }
        }
    }
}

fn refused(error: &io::Error) -> FetchError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => FetchError::TooLarge,
        _ => FetchError::Encoding(error.to_string()),
    }
}

/// Reads a body to its end. Returns it, and how many bytes came over the network.
pub(crate) async fn read(
    mut body: Incoming,
    encoding: &str,
    host: &str,
) -> Result<(Vec<u8>, usize), FetchError> {
    let mut decoder = Decoder::new(encoding)?;
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| FetchError::Exchange(host.to_owned(), error.to_string()))?;
        let Ok(chunk) = frame.into_data() else { continue };
        received += chunk.len();
        if received > BODY_BYTES_MAX {
            return Err(FetchError::TooLarge);
        }
        decoder.write(&chunk)?;
    }
    Ok((decoder.finish()?, received))
}
