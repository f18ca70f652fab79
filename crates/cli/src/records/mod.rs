//! Files of records: read whole and checked before anything is loaded.
//!
//! A line is a key, or a key and a value, decimal, with blanks or one comma between them; all lines
//! of a file are of one kind. Where there is only a key, the value is the key itself, so that what
//! a get yields shows whether it is right. A carriage return before the line feed does not matter,
//! nor does a missing last line feed. Every line is a record: there are no comments and no empty
//! lines, because either may as well be damage. Each key is there once.
//!
//! Files that begin with the gzip magic are unpacked, whatever their name.

mod line;
mod source;

use std::io::{self, BufRead};

use indicatif::ProgressBar;

pub(crate) use line::LineFault;
pub(crate) use source::Source;

use line::{Columns, parse_line};

/// Bytes of a line that are held in memory: more than two numbers of 20 digits and some blanks.
const LINE_SIZE_BYTES_MAX: usize = 256;

/// A record and where it stood. 24 bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: u64,
    pub(crate) value: u64,
    /// Counted from 1.
    line: u64,
}

/// What is wrong with a file of records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsError {
    /// It cannot be opened.
    #[error("cannot open {file}: {source}")]
    Open { file: String, source: io::Error },
    /// It is a directory.
    #[error("{file} is a directory; name a file of records, or - for stdin")]
    Directory { file: String },
    /// Reading or unpacking failed.
    #[error("cannot read {file} after line {line}: {source}{hint}")]
    Read {
        file: String,
        line: u64,
        source: io::Error,
        hint: &'static str,
    },
    /// A line is no record.
    #[error("{file}:{line}: {content} is no record: {fault}")]
    BadLine {
        file: String,
        line: u64,
        content: String,
        fault: LineFault,
    },
    /// A key is there twice.
    #[error(
        "{file}:{line}: key {key} is on line {first_line} already; each key may be there once, so \
         take one of the lines out"
    )]
    Twice {
        file: String,
        line: u64,
        first_line: u64,
        key: u64,
    },
    /// There is no line.
    #[error("{file} has no records: a line is a key, or a key and a value")]
    Empty { file: String },
}

/// Reads all records, ascending by key. The bar shows bytes of the file.
///
/// # Errors
/// The first thing that is wrong, in the order of the file; a key that is there twice only if
/// nothing else is.
pub(crate) fn read(source: &Source, bar: &ProgressBar) -> Result<Vec<Record>, RecordsError> {
    let file = || source.to_string();
    let mut input = source.open(bar)?;
    let mut records = read_lines(source, input.as_mut())?;
    if records.is_empty() {
        return Err(RecordsError::Empty { file: file() });
    }
    if !records.is_sorted_by_key(|record| record.key) {
        records.sort_unstable_by_key(|record| (record.key, record.line));
    }
    let twice = records.windows(2).filter(|pair| pair[0].key == pair[1].key);
    match twice.min_by_key(|pair| pair[1].line) {
        Some(
            &[
                Record {
                    line: first_line, ..
                },
                Record { line, key, .. },
            ],
        ) => Err(RecordsError::Twice {
            file: file(),
            line,
            first_line,
            key,
        }),
        _ => Ok(records),
    }
}

fn read_lines(source: &Source, input: &mut dyn BufRead) -> Result<Vec<Record>, RecordsError> {
    let mut records = Vec::new();
    let mut columns = None;
    let mut content = Vec::with_capacity(LINE_SIZE_BYTES_MAX + 1);
    for line in 1.. {
        let read = read_line(input, &mut content);
        read.map_err(|error| RecordsError::Read {
            file: source.to_string(),
            line: line - 1,
            hint: hint(&error),
            source: error,
        })?;
        if content.is_empty() {
            break;
        }
        let parsed = parse_line(&content, columns, LINE_SIZE_BYTES_MAX);
        let (key, value) = parsed.map_err(|fault| RecordsError::BadLine {
            file: source.to_string(),
            line,
            content: line::shown(&content),
            fault,
        })?;
        columns.get_or_insert(Columns {
            has_value: value.is_some(),
            first_line: line,
        });
        records.push(Record {
            key,
            value: value.unwrap_or(key),
            line,
        });
    }
    Ok(records)
}

/// The next line with its line feed, or the beginning of one that is too long.
fn read_line(input: &mut dyn BufRead, content: &mut Vec<u8>) -> io::Result<()> {
    content.clear();
    let limit = LINE_SIZE_BYTES_MAX as u64 + 1;
    io::Read::take(input, limit)
        .read_until(b'\n', content)
        .map(|_| ())
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "; it is cut off, get it again",
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => "; it is damaged, get it again",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn read_bytes(content: &[u8]) -> Result<Vec<(u64, u64)>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records.txt");
        std::fs::write(&path, content).expect("a file");
        let source = Source::File(path);
        let records = read(&source, &ProgressBar::hidden()).map_err(|error| error.to_string())?;
        Ok(records
            .iter()
            .map(|record| (record.key, record.value))
            .collect())
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).expect("in memory");
        encoder.finish().expect("in memory")
    }

    /// Promise: keys alone are their own values; blanks, commas, tabs, carriage returns and a
    /// missing last line feed are understood, packed or not; the result ascends.
    #[test]
    fn both_kinds_of_lines_are_read() {
        let keys = b"18446744073709551615\r\n 7\n007000";
        let pairs = b"5,6\n3 4\n\t1\t \t2 \n9 , 0\r\n";
        for wrap in [|content: &[u8]| content.to_vec(), gzip] {
            let max = u64::MAX;
            assert_eq!(
                read_bytes(&wrap(keys)).unwrap(),
                [(7, 7), (7000, 7000), (max, max)]
            );
            assert_eq!(
                read_bytes(&wrap(pairs)).unwrap(),
                [(1, 2), (3, 4), (5, 6), (9, 0)]
            );
        }
    }

    /// Promise: the first bad line is named with its number, its content cut to what fits a
    /// terminal, and what would be right.
    #[test]
    fn the_first_bad_line_is_named() {
        let long = [&b"1\n"[..], &[b'9'; 5_000], b"\nx\n"].concat();
        let cases: [(&[u8], u64, &str); 10] = [
            (
                b"1\nthree\nx\n",
                2,
                "'three' is no record: its key is no whole number",
            ),
            (b"-1\n", 1, "'-1' is no record"),
            (b"1\n18446744073709551616\n", 2, "18446744073709551615"),
            (
                b"1 2\n3 -4\n",
                2,
                "'3 -4' is no record: its value is no whole number",
            ),
            (b"1 2 3\n", 1, "'1 2 3' is no record"),
            (b"1\n\n2\n", 2, "the line is empty"),
            (b"1 2\n3\n", 2, "line 1 has a value"),
            (b"1\n2 3\n", 2, "line 1 has none"),
            (b"1\n\x1b[2J\xFF\n", 2, "'\\u{1b}[2J\u{FFFD}'"),
            (&long, 2, "99..."),
        ];
        for (content, line, told) in cases {
            let error = read_bytes(content).expect_err("a bad line");
            assert!(error.contains(&format!("records.txt:{line}: ")), "{error}");
            assert!(error.contains(told) && error.len() < 400, "{error}");
        }
    }

    /// Promise: a key that is there twice is an error that names both lines, the earliest such
    /// pair, also when the values are the same.
    #[test]
    fn a_key_there_twice_names_both_lines() {
        let error = read_bytes(b"9 1\n5 1\n7 1\n5 1\n9 2\n").expect_err("twice");
        assert!(
            error.contains("records.txt:4: key 5 is on line 2 already"),
            "{error}"
        );
        let sorted = read_bytes(b"1\n2\n2\n").expect_err("twice");
        assert!(
            sorted.contains("records.txt:3: key 2 is on line 2 already"),
            "{sorted}"
        );
    }

    /// Promise: a file without lines, and a gzip file that is cut off or damaged, are errors.
    #[test]
    fn empty_and_damaged_files_are_errors() {
        for content in [Vec::new(), gzip(b"")] {
            let error = read_bytes(&content).expect_err("empty");
            assert!(error.contains("has no records"), "{error}");
        }
        let packed = gzip(b"1\n2\n3\n");
        let cut = read_bytes(&packed[..packed.len() - 6]).expect_err("cut off");
        assert!(cut.contains("cut off"), "{cut}");
        let mut damaged = packed;
        let place = damaged.len() - 6;
        damaged[place] ^= 0xFF;
        let error = read_bytes(&damaged).expect_err("damaged");
        assert!(error.contains("damaged"), "{error}");
    }
}
