//! Reads the lines of a file of records.

use std::io::{self, BufRead, Cursor, Read};

use indicatif::ProgressBar;

use super::json::parse_words;
use super::word_line::{LINE_SIZE_BYTES_MAX, is_plainly_words};
use super::{FileFormat, LineFault, RecordsError, Source};
use crate::table_options::KindName;

/// Maximum number of characters of an invalid line in an error message.
const SHOWN_COUNT_MAX: usize = 40;

/// U+FEFF in UTF-8, with which some programs begin text files.
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// File of records that is being read.
pub(crate) struct Input<'a> {
    source: &'a Source,
    reader: Box<dyn BufRead>,
    /// Number of the last line read, counted from 1; 0 before the first.
    pub(super) line: u64,
}

impl<'a> Input<'a> {
    /// Opens a file. The bar shows bytes of the file.
    pub(crate) fn open(source: &'a Source, bar: &ProgressBar) -> Result<Self, RecordsError> {
        Ok(Self {
            source,
            reader: source.open(bar)?,
            line: 0,
        })
    }

    /// Skips a byte order mark at the beginning. Called before the first line is read.
    pub(crate) fn skip_byte_order_mark(&mut self) -> Result<(), RecordsError> {
        let begins_with_mark = match self.reader.fill_buf() {
            Ok(beginning) => beginning.starts_with(&BYTE_ORDER_MARK),
            Err(error) => return Err(self.unread(error)),
        };
        if begins_with_mark {
            self.reader.consume(BYTE_ORDER_MARK.len());
        }
        Ok(())
    }

    /// Returns the kind of the records, detected from the first line, which is then read again. A
    /// line of numbers means words, because tables of words are dumped so.
    pub(crate) fn kind(&mut self, format: FileFormat) -> Result<KindName, RecordsError> {
        let mut first = Vec::new();
        let read = read_line(&mut self.reader, &mut first, LINE_SIZE_BYTES_MAX);
        read.map_err(|error| self.unread(error))?;
        let is_words = match format {
            FileFormat::Tsv => is_plainly_words(&first),
            FileFormat::RawTsv | FileFormat::HexTsv => false,
            FileFormat::Json => parse_words(&first).is_ok(),
        };
        let behind = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        self.reader = Box::new(Cursor::new(first).chain(behind));
        Ok(if is_words {
            KindName::Words
        } else {
            KindName::Bytes
        })
    }

    /// Reads the next line with its line feed, or the beginning of a line that exceeds the limit in
    /// bytes. Returns whether there was a line.
    pub(super) fn next_line(
        &mut self,
        content: &mut Vec<u8>,
        size_bytes_max: usize,
    ) -> Result<bool, RecordsError> {
        let read = read_line(&mut self.reader, content, size_bytes_max);
        read.map_err(|error| self.unread(error))?;
        self.line += u64::from(!content.is_empty());
        Ok(!content.is_empty())
    }

    fn unread(&self, error: io::Error) -> RecordsError {
        RecordsError::Read {
            file: self.source.to_string(),
            line: self.line,
            hint: hint(&error),
            source: error,
        }
    }

    /// Returns the error for the last line read, which is invalid.
    pub(super) fn bad_line(&self, content: &[u8], fault: LineFault) -> RecordsError {
        RecordsError::BadLine {
            file: self.source.to_string(),
            line: self.line,
            content: shown(content),
            fault,
        }
    }

    /// Returns the error for a format of byte strings with a table of words.
    pub(super) fn not_for_words(&self, format: FileFormat) -> RecordsError {
        RecordsError::NotForWords {
            file: self.source.to_string(),
            option: if format == FileFormat::RawTsv {
                "--raw"
            } else {
                "--hex"
            },
        }
    }

    /// Returns the error for a key that is on two lines.
    pub(super) fn twice(&self, key: String, [first_line, line]: [u64; 2]) -> RecordsError {
        RecordsError::Twice {
            file: self.source.to_string(),
            line,
            first_line,
            key,
        }
    }
}

fn read_line(
    input: &mut dyn BufRead,
    content: &mut Vec<u8>,
    size_bytes_max: usize,
) -> io::Result<()> {
    content.clear();
    let limit = size_bytes_max as u64 + 1;
    io::Read::take(input, limit)
        .read_until(b'\n', content)
        .map(|_| ())
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            "; the file is truncated or has trailing data: get a new copy"
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            "; the file is corrupted: get a new copy"
        }
        _ => "",
    }
}

/// Formats a line or a part of one for an error message: quoted, without control characters,
/// truncated when long.
fn shown(content: &[u8]) -> String {
    // A character has at most four bytes.
    let begin = &content[..content.len().min(4 * (SHOWN_COUNT_MAX + 1))];
    let text = String::from_utf8_lossy(begin.trim_ascii());
    let mut shown: String = text
        .chars()
        .take(SHOWN_COUNT_MAX)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > SHOWN_COUNT_MAX {
        shown.push_str("...");
    }
    format!("'{shown}'")
}
