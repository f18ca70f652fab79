//! Lines of a file of records.

use std::io::{self, BufRead, Cursor, Read};

use indicatif::ProgressBar;

use super::json::parse_words;
use super::word_line::{LINE_SIZE_BYTES_MAX, is_plainly_words};
use super::{FileFormat, LineFault, RecordsError, Source};
use crate::table_options::KindName;

/// Characters of a bad line that are shown.
const SHOWN_COUNT_MAX: usize = 40;

/// A file of records while it is read.
pub(crate) struct Input<'a> {
    source: &'a Source,
    reader: Box<dyn BufRead>,
    /// The line that was read last, counted from 1; 0 before.
    pub(super) line: u64,
}

impl<'a> Input<'a> {
    /// Opens it. The bar shows bytes of the file.
    pub(crate) fn open(source: &'a Source, bar: &ProgressBar) -> Result<Self, RecordsError> {
        Ok(Self {
            source,
            reader: source.open(bar)?,
            line: 0,
        })
    }

    /// Of which kind its records are, as far as the first line tells, which is read again
    /// afterwards: words if it is one of numbers, as tables of words are dumped.
    pub(crate) fn kind(&mut self, format: FileFormat) -> Result<KindName, RecordsError> {
        let mut first = Vec::new();
        let read = read_line(&mut self.reader, &mut first, LINE_SIZE_BYTES_MAX);
        read.map_err(|error| self.unread(error))?;
        let is_words = match format {
            FileFormat::Tsv => is_plainly_words(&first),
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

    /// The next line with its line feed, or the beginning of one that is longer than so many
    /// bytes. Returns whether there was one.
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

    /// The line that was read last is no record.
    pub(super) fn bad_line(&self, content: &[u8], fault: LineFault) -> RecordsError {
        RecordsError::BadLine {
            file: self.source.to_string(),
            line: self.line,
            content: shown(content),
            fault,
        }
    }

    /// There was no line.
    pub(super) fn empty(&self, form: &'static str) -> RecordsError {
        RecordsError::Empty {
            file: self.source.to_string(),
            form,
        }
    }

    /// A key is on two lines.
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
            "; it is cut off, or something is behind its end: get it again"
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => "; it is damaged, get it again",
        _ => "",
    }
}

/// A line or a part of one for an error message: quoted, harmless for a terminal, cut when long.
fn shown(content: &[u8]) -> String {
    // Four bytes are a character at the most.
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
