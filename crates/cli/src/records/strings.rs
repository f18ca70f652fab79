//! Records of byte strings.

use farleaf::key::text::escape;
use farleaf::key::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use super::json::parse_strings;
use super::tsv::{parse_escaped, parse_hexadecimal, parse_raw};
use super::{FileFormat, Input, LineFault, RecordsError};

/// Maximum size of a line in memory, in bytes: an escaped byte has four characters, in JSON six.
const LINE_SIZE_BYTES_MAX: usize = 6 * (KEY_SIZE_BYTES_MAX + VALUE_SIZE_BYTES_MAX) + 64;

/// Records of a file, in ascending key order. They take their own bytes and 24 more for each
/// record.
#[derive(Debug, Default)]
pub(crate) struct StringRecords {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// Position of a record: its bytes, the value after the key, and its line in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    /// Line number, counted from 1.
    line: u64,
    key_size_bytes: u32,
    value_size_bytes: u32,
}

impl StringRecords {
    /// Reads all records.
    ///
    /// # Errors
    /// The first invalid line of the file. If all lines are valid, the first duplicate key.
    pub(crate) fn read(input: &mut Input<'_>, format: FileFormat) -> Result<Self, RecordsError> {
        let mut records = Self::default();
        let mut content = Vec::new();
        while input.next_line(&mut content, LINE_SIZE_BYTES_MAX)? {
            let added = records.add(&content, format, input.line);
            added.map_err(|fault| input.bad_line(&content, fault))?;
        }
        records.sort();
        match records.twice() {
            Some((key, lines)) => Err(input.twice(format!("'{}'", escape(key)), lines)),
            None => Ok(records),
        }
    }

    fn add(&mut self, content: &[u8], format: FileFormat, line: u64) -> Result<(), LineFault> {
        if content.len() > LINE_SIZE_BYTES_MAX {
            let size_bytes_max = LINE_SIZE_BYTES_MAX;
            return Err(LineFault::TooLong { size_bytes_max });
        }
        let (key, value) = match format {
            FileFormat::Tsv => parse_escaped(content)?,
            FileFormat::RawTsv => parse_raw(content)?,
            FileFormat::HexTsv => parse_hexadecimal(content)?,
            FileFormat::Json => parse_strings(content)?,
        };
        let (key_size_bytes, value_size_bytes) = (key.len(), value.len());
        if key_size_bytes > KEY_SIZE_BYTES_MAX {
            let size_bytes = key_size_bytes;
            return Err(LineFault::KeyTooLong { size_bytes });
        }
        if value_size_bytes > VALUE_SIZE_BYTES_MAX {
            let size_bytes = value_size_bytes;
            return Err(LineFault::ValueTooLong { size_bytes });
        }
        self.places.push(Place {
            start: self.bytes.len(),
            line,
            key_size_bytes: key_size_bytes as u32,
            value_size_bytes: value_size_bytes as u32,
        });
        self.bytes.extend_from_slice(&key);
        self.bytes.extend_from_slice(&value);
        Ok(())
    }

    fn sort(&mut self) {
        let Self { bytes, places } = self;
        if !places.is_sorted_by(|one, next| key_at(bytes, *one) <= key_at(bytes, *next)) {
            places.sort_unstable_by(|one, other| {
                let keys = key_at(bytes, *one).cmp(key_at(bytes, *other));
                keys.then(one.line.cmp(&other.line))
            });
        }
    }

    /// Returns the first duplicate key and its two lines.
    fn twice(&self) -> Option<(&[u8], [u64; 2])> {
        let key = |place| key_at(&self.bytes, place);
        let pairs = self.places.windows(2);
        let twice = pairs.filter(|pair| key(pair[0]) == key(pair[1]));
        let pair = twice.min_by_key(|pair| pair[1].line)?;
        Some((key(pair[0]), [pair[0].line, pair[1].line]))
    }

    /// Returns the number of records.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns key and value of a record by its position in key order; `None` after the last.
    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let place = *self.places.get(index)?;
        let end = place.start + (place.key_size_bytes + place.value_size_bytes) as usize;
        let record = &self.bytes[place.start..end];
        Some(record.split_at(place.key_size_bytes as usize))
    }

    /// Returns all records, in ascending key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.count()).filter_map(|index| self.get(index))
    }
}

fn key_at(bytes: &[u8], place: Place) -> &[u8] {
    &bytes[place.start..][..place.key_size_bytes as usize]
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressBar;

    use super::super::Source;
    use super::*;
    use crate::table_options::KindName;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn read(content: &[u8], format: FileFormat) -> Result<Pairs, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records");
        std::fs::write(&path, content).expect("a file");
        let source = Source::File(path);
        let input = Input::open(&source, &ProgressBar::hidden());
        let mut input = input.map_err(|error| error.to_string())?;
        let records = StringRecords::read(&mut input, format).map_err(|it| it.to_string())?;
        let owned = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
        Ok(records.iter().map(owned).collect())
    }

    /// Promise: keys and values are decoded, including empty and escaped ones. Records are sorted
    /// by their bytes, whatever the order and the line ends of the file.
    #[test]
    fn both_formats_are_read() {
        let records = [
            (&b""[..], &b""[..]),
            (b"\x00\xff\t\n\\", b"\xc3"),
            (b"b", "é ".as_bytes()),
        ];
        let records = records.map(|(key, value)| (key.to_vec(), value.to_vec()));
        let tsv = "b\té \r\n\t\n\\x00\\xfF\\t\\n\\\\\t\\xc3".as_bytes();
        assert_eq!(read(tsv, FileFormat::Tsv).unwrap(), records);
        let json = concat!(
            r#"{"value":"\u00e9 ", "key":"b"}"#,
            "\r\n",
            r#"{"key_hex":"","value":""}"#,
            "\n",
            r#"{"key_hex":"00Ff090a5c","value_hex":"c3"}"#
        );
        assert_eq!(read(json.as_bytes(), FileFormat::Json).unwrap(), records);
    }

    /// Promise: raw lines are read unchanged, hexadecimal ones are decoded, and an empty file has
    /// no records.
    #[test]
    fn raw_and_hexadecimal_lines_are_read() {
        let raw = read(b"C:\\new\ta\tb\\n\r\n\xff\t\n", FileFormat::RawTsv).unwrap();
        let wanted = [(&b"C:\\new"[..], &b"a\tb\\n"[..]), (b"\xff", b"")];
        assert_eq!(
            raw,
            wanted.map(|(key, value)| (key.to_vec(), value.to_vec()))
        );
        let hex = read(b"00fF\t\n61\t0a\n", FileFormat::HexTsv).unwrap();
        let wanted = [(&b"\x00\xff"[..], &b""[..]), (b"a", b"\n")];
        assert_eq!(
            hex,
            wanted.map(|(key, value)| (key.to_vec(), value.to_vec()))
        );
        assert_error(FileFormat::HexTsv, b"6\t\n", "a digit is missing");
        assert_error(FileFormat::RawTsv, b"a\n", "found no tab");
        for format in [FileFormat::Tsv, FileFormat::RawTsv, FileFormat::Json] {
            assert_eq!(read(b"", format), Ok(Vec::new()));
        }
    }

    fn assert_error(format: FileFormat, content: &[u8], expected: &str) {
        let error = read(content, format).expect_err("a bad line");
        assert!(
            error.contains(expected) && error.len() < 400,
            "{expected}: {error}"
        );
    }

    /// Promise: the error names the first invalid line, the problem and its position in the line.
    #[test]
    fn the_first_bad_line_is_named() {
        let long_key = format!("a\tb\n{}\tv\n", "k".repeat(KEY_SIZE_BYTES_MAX + 1));
        for (content, expected) in [
            (
                &b"a\tb\nalone\n"[..],
                "records:2: 'alone' is not a valid record: expected a key, a tab and a value",
            ),
            (b"{\"key\":1}\n", "--format json reads objects"),
            (
                b"a\tb\n\nc\td\n",
                "records:2: '' is not a valid record: expected a key, a tab and a value",
            ),
            (b"a\tb\tc\n", "found more than one tab"),
            (b"a\xff\tb\n", "invalid UTF-8 at byte 2"),
            (b"C:\\d\tb\n", "invalid key: character 4: unknown escape"),
            (b"a\tb\\\n", "invalid value: character 3: the text ends"),
            (long_key.as_bytes(), "records:2: 'kkk"),
            (long_key.as_bytes(), "the key has 4097 bytes"),
        ] {
            assert_error(FileFormat::Tsv, content, expected);
        }
    }

    /// Promise: the error for invalid JSON names the first invalid line, the problem and its
    /// position.
    #[test]
    fn the_first_bad_object_is_named() {
        for (content, expected) in [
            (&b"{\"key\":\"a\"}\n"[..], "missing value or value_hex"),
            (
                b"{\"key\":\"a\",\"key_hex\":\"61\",\"value\":\"\"}\n",
                "both key and key_hex",
            ),
            (
                b"{\"key_hex\":\"6\",\"value\":\"\"}\n",
                "invalid key_hex: character 2: a digit is missing",
            ),
            (b"{\"key\":1,\"value\":\"\"}\n", "invalid type: integer `1`"),
            (b"{\"key\":\"a\",\"val\":\"\"}\n", "unknown field `val`"),
            (
                b"{\"key\":\"a\n",
                "expected an object with a key and a value",
            ),
            (
                b"{\"key\":\"\\ud800\",\"value\":\"\"}\n",
                "expected an object",
            ),
            (b"{\"key\":\"\xff\",\"value\":\"\"}\n", "use key_hex"),
            (b"\n", "records:1: ''"),
        ] {
            assert_error(FileFormat::Json, content, expected);
        }
    }

    /// Promise: a duplicate key, however it is written, is an error that names both lines.
    #[test]
    fn a_key_there_twice_names_both_lines() {
        let error = read(b"b\t1\na\t1\nc\t\n\\x62\t2\n", FileFormat::Tsv).expect_err("twice");
        assert!(
            error.contains("records:4: duplicate key 'b', first on line 1"),
            "{error}"
        );
    }

    /// Promise: the first line determines the kind of the records, and is still read as a record.
    #[test]
    fn the_first_line_tells_the_kind() {
        let (words, bytes) = (KindName::Words, KindName::Bytes);
        for (format, content, kind, line_count) in [
            (FileFormat::Tsv, &b"7\t5\n8\tx\n"[..], words, 2),
            (FileFormat::Tsv, b"7\n", words, 1),
            (FileFormat::Tsv, b"007\n", words, 1),
            (FileFormat::Tsv, b"7,5", words, 1),
            (FileFormat::Tsv, b"007\t5\n", bytes, 1),
            (FileFormat::Tsv, b"7\tx\n8\t9\n", bytes, 2),
            (FileFormat::Tsv, b"-7\t1\n", bytes, 1),
            (FileFormat::Tsv, b"", bytes, 0),
            (FileFormat::Json, b"{\"value\":1,\"key\":7}\n", words, 1),
            (
                FileFormat::Json,
                b"{\"key\":\"7\",\"value\":\"1\"}\n",
                bytes,
                1,
            ),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("records");
            std::fs::write(&path, content).expect("a file");
            let source = Source::File(path);
            let mut input = Input::open(&source, &ProgressBar::hidden()).expect("open");
            assert_eq!(input.kind(format).expect("read"), kind, "{content:?}");
            let (mut read, mut line) = (Vec::new(), Vec::new());
            while input.next_line(&mut line, 100).expect("read") {
                read.extend_from_slice(&line);
            }
            assert_eq!((&read[..], input.line), (content, line_count));
        }
    }
}
