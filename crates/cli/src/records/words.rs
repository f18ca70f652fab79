//! Reads files of records of words.
//!
//! A line is a key, or a key and a value, decimal, with blanks or one comma between them; all lines
//! of a file have the same form. A key alone is its own value, so that a get shows whether its
//! result is right. A line can also be a JSON object.

use super::json::parse_words;
use super::word_line::{Columns, LINE_SIZE_BYTES_MAX, parse_line, refuse_strings};
use super::{FileFormat, Input, LineFault, RecordsError};

/// Record and its line number. Takes 24 bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordRecord {
    pub(crate) key: u64,
    pub(crate) value: u64,
    /// Line number, counted from 1.
    line: u64,
}

/// Reads all records and sorts them by key. If the kind was detected from the first line only, a
/// number that would not be preserved as written is an error.
///
/// # Errors
/// The first invalid line of the file. If all lines are valid, the first duplicate key.
pub(crate) fn read_words(
    input: &mut Input<'_>,
    format: FileFormat,
    is_guess: bool,
) -> Result<Vec<WordRecord>, RecordsError> {
    let mut records = match format {
        FileFormat::Tsv => read_lines(input, is_guess)?,
        FileFormat::RawTsv | FileFormat::HexTsv => return Err(input.not_for_words(format)),
        FileFormat::Json => read_objects(input)?,
    };
    if !records.is_sorted_by_key(|record| record.key) {
        records.sort_unstable_by_key(|record| (record.key, record.line));
    }
    let twice = records.windows(2).filter(|pair| pair[0].key == pair[1].key);
    match twice.min_by_key(|pair| pair[1].line) {
        Some(&[first, second]) => {
            let lines = [first.line, second.line];
            Err(input.twice(first.key.to_string(), lines))
        }
        _ => Ok(records),
    }
}

fn read_lines(input: &mut Input<'_>, is_guess: bool) -> Result<Vec<WordRecord>, RecordsError> {
    let mut records = Vec::new();
    let mut columns = None;
    let mut content = Vec::with_capacity(LINE_SIZE_BYTES_MAX + 1);
    while input.next_line(&mut content, LINE_SIZE_BYTES_MAX)? {
        let line = input.line;
        let parsed = parse_line(&content, columns);
        let (key, value) = parsed
            .and_then(|record| {
                if is_guess {
                    refuse_strings(&content)?;
                }
                Ok(record)
            })
            .map_err(|fault| input.bad_line(&content, fault))?;
        columns.get_or_insert(Columns {
            has_value: value.is_some(),
            first_line: line,
        });
        records.push(WordRecord {
            key,
            value: value.unwrap_or(key),
            line,
        });
    }
    Ok(records)
}

fn read_objects(input: &mut Input<'_>) -> Result<Vec<WordRecord>, RecordsError> {
    let mut records = Vec::new();
    let mut content = Vec::with_capacity(LINE_SIZE_BYTES_MAX + 1);
    while input.next_line(&mut content, LINE_SIZE_BYTES_MAX)? {
        let parsed = if content.len() > LINE_SIZE_BYTES_MAX {
            let size_bytes_max = LINE_SIZE_BYTES_MAX;
            Err(LineFault::TooLong { size_bytes_max })
        } else {
            parse_words(&content)
        };
        let (key, value) = parsed.map_err(|fault| input.bad_line(&content, fault))?;
        let line = input.line;
        records.push(WordRecord { key, value, line });
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use indicatif::ProgressBar;

    use super::super::Source;
    use super::*;

    fn read_bytes(content: &[u8]) -> Result<Vec<(u64, u64)>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records.txt");
        std::fs::write(&path, content).expect("a file");
        let source = Source::File(path);
        let mut input =
            Input::open(&source, &ProgressBar::hidden()).map_err(|it| it.to_string())?;
        let skipped = input.skip_byte_order_mark();
        skipped.map_err(|error| error.to_string())?;
        let read = read_words(&mut input, FileFormat::Tsv, false);
        let records = read.map_err(|error| error.to_string())?;
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

    /// Promise: keys alone are their own values. Blanks, commas, tabs, carriage returns and a
    /// missing last line feed are accepted, packed or not. The result is sorted.
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

    /// Promise: the error names the first invalid line, its content (truncated to fit a terminal),
    /// and the expected form.
    #[test]
    fn the_first_bad_line_is_named() {
        let long = [&b"1\n"[..], &[b'9'; 5_000], b"\nx\n"].concat();
        let cases: [(&[u8], u64, &str); 10] = [
            (
                b"1\nthree\nx\n",
                2,
                "'three' is not a valid record: expected a whole number",
            ),
            (b"-1\n", 1, "'-1' is not a valid record"),
            (b"1\n18446744073709551616\n", 2, "18446744073709551615"),
            (
                b"1 2\n3 -4\n",
                2,
                "'3 -4' is not a valid record: expected a whole number",
            ),
            (b"1 2 3\n", 1, "'1 2 3' is not a valid record"),
            (b"1\n\n2\n", 2, "found an empty line"),
            (b"1 2\n3\n", 2, "line 1 has a value"),
            (b"1\n2 3\n", 2, "line 1 has none"),
            (b"1\n\x1b[2J\xFF\n", 2, "'\\u{1b}[2J\u{FFFD}'"),
            (&long, 2, "99..."),
        ];
        for (content, line, expected) in cases {
            let error = read_bytes(content).expect_err("a bad line");
            assert!(error.contains(&format!("records.txt:{line}: ")), "{error}");
            assert!(error.contains(expected) && error.len() < 400, "{error}");
        }
    }

    /// Promise: a duplicate key is an error that names both lines of the earliest pair, also when
    /// the values are the same.
    #[test]
    fn a_key_there_twice_names_both_lines() {
        let error = read_bytes(b"9 1\n5 1\n7 1\n5 1\n9 2\n").expect_err("twice");
        assert!(
            error.contains("records.txt:4: duplicate key 5, first on line 2"),
            "{error}"
        );
        let sorted = read_bytes(b"1\n2\n2\n").expect_err("twice");
        assert!(
            sorted.contains("records.txt:3: duplicate key 2, first on line 2"),
            "{sorted}"
        );
    }

    /// Promise: an empty file has no records, a byte order mark is skipped, and a truncated or
    /// corrupted gzip file is an error.
    #[test]
    fn damaged_files_are_errors_and_empty_ones_are_not() {
        for content in [Vec::new(), gzip(b""), b"\xEF\xBB\xBF".to_vec()] {
            assert_eq!(read_bytes(&content), Ok(Vec::new()));
        }
        let marked = [&b"\xEF\xBB\xBF"[..], b"7,5\n"].concat();
        assert_eq!(read_bytes(&marked), Ok(vec![(7, 5)]));
        assert_eq!(read_bytes(&gzip(&marked)), Ok(vec![(7, 5)]));
        let packed = gzip(b"1\n2\n3\n");
        let cut = read_bytes(&packed[..packed.len() - 6]).expect_err("cut off");
        assert!(cut.contains("truncated"), "{cut}");
        let mut damaged = packed;
        let place = damaged.len() - 6;
        damaged[place] ^= 0xFF;
        let error = read_bytes(&damaged).expect_err("damaged");
        assert!(error.contains("corrupted"), "{error}");
    }
}
