//! Key files of byte strings: one key per line, ended by the first tab, if any.

use std::cmp::Ordering;
use std::io::{BufRead, Read};
use std::path::Path;

use farleaf::key::KEY_SIZE_BYTES_MAX;
use farleaf::key::text::{TextError, unescape};

use super::DatasetError;
use super::file::open;

/// Maximal length of a key's text: an escaped byte has four characters.
const KEY_TEXT_SIZE_BYTES_MAX: usize = 4 * KEY_SIZE_BYTES_MAX;

/// Maximal length of a line's part in memory: the key's text, with the tab or line end after it.
const LINE_SIZE_BYTES_MAX: usize = KEY_TEXT_SIZE_BYTES_MAX + 2;

/// Maximal number of characters of an invalid line in an error.
const SHOWN_COUNT_MAX: usize = 40;

/// Reason why a line of a key file does not begin with a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StringFault {
    /// The line is empty.
    #[error("the line is empty; a line with the empty key begins with a tab")]
    Empty,
    /// The text is invalid UTF-8.
    #[error("invalid UTF-8 at byte {}; write raw bytes as \\xNN", .index + 1)]
    NotUtf8 {
        /// Index of the first invalid byte, counted from 0.
        index: usize,
    },
    /// The text has a backslash without a valid escape.
    #[error(transparent)]
    BadText(#[from] TextError),
    /// The key is longer than the maximum.
    #[error("the key has {size_bytes} bytes, more than the maximum of {KEY_SIZE_BYTES_MAX}")]
    TooLong {
        /// Size of the key in bytes.
        size_bytes: usize,
    },
    /// The line is so long that its end was not read.
    #[error(
        "the text of the key is longer than {KEY_TEXT_SIZE_BYTES_MAX} bytes, and a key has at most \
         {KEY_SIZE_BYTES_MAX} bytes"
    )]
    Endless,
}

/// Keys of a file, ascending and distinct: their bytes, and 16 bytes for each.
#[derive(Clone, Debug, Default)]
pub struct StringKeys {
    bytes: Vec<u8>,
    /// Start and size of each key.
    places: Vec<(u64, u32)>,
}

impl StringKeys {
    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns the key of a rank. Costs a cache miss or two.
    ///
    /// # Panics
    /// The rank does not exist.
    #[inline]
    pub fn key(&self, rank: usize) -> &[u8] {
        let (start, size_bytes) = self.places[rank];
        key_at(&self.bytes, start, size_bytes)
    }

    /// Returns the rank of a key, at least `start`; `None` if it is not found from there on. The
    /// number of comparisons is logarithmic in its distance from `start`.
    pub fn rank(&self, key: &[u8], start: usize) -> Option<usize> {
        let is_before = |rank: usize| self.key(rank).cmp(key) == Ordering::Less;
        let (mut low, mut step) = (start, 1);
        while low + step < self.count() && is_before(low + step) {
            low += step;
            step *= 2;
        }
        let high = (low + step + 1).min(self.count());
        let near = self.places.get(low..high)?;
        let is_less =
            |&(start, size_bytes): &(u64, u32)| key_at(&self.bytes, start, size_bytes) < key;
        let rank = low + near.partition_point(is_less);
        (rank < self.count() && self.key(rank) == key).then_some(rank)
    }

    /// Returns the mean size of the keys in bytes.
    pub fn size_bytes_mean(&self) -> f64 {
        let size_bytes: u64 = self.places.iter().map(|(_, size)| u64::from(*size)).sum();
        size_bytes as f64 / self.count().max(1) as f64
    }

    fn add(&mut self, key: &[u8]) {
        self.places
            .push((self.bytes.len() as u64, key.len() as u32));
        self.bytes.extend_from_slice(key);
    }

    fn sort(&mut self) {
        let Self { bytes, places } = self;
        let key = |&(start, size_bytes): &(u64, u32)| key_at(bytes, start, size_bytes);
        places.sort_unstable_by(|one, other| key(one).cmp(key(other)));
        places.dedup_by(|one, other| key(one) == key(other));
    }
}

fn key_at(bytes: &[u8], start: u64, size_bytes: u32) -> &[u8] {
    &bytes[start as usize..][..size_bytes as usize]
}

/// Reads the keys of a file, plain or gzip, ascending and without duplicates. A line is a key,
/// optionally followed by a tab and other text, as in a file for `farleaf load`, with the same
/// escapes. A carriage return before the line feed does not belong to the key; blanks do.
///
/// # Errors
/// The file cannot be read, has a line without a valid key (or empty), or has no line.
pub fn read_string_file(path: &Path) -> Result<StringKeys, DatasetError> {
    let io_error = |source| DatasetError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = open(path).map_err(io_error)?;
    let mut keys = StringKeys::default();
    let mut content = Vec::with_capacity(LINE_SIZE_BYTES_MAX);
    for line in 1.. {
        if !read_start(&mut file, &mut content).map_err(io_error)? {
            break;
        }
        let key = parse(&content).map_err(|fault| DatasetError::BadString {
            path: path.to_owned(),
            line,
            content: shown(&content),
            fault,
        })?;
        keys.add(&key);
    }
    if keys.count() == 0 {
        return Err(DatasetError::Empty {
            path: path.to_owned(),
        });
    }
    keys.sort();
    Ok(keys)
}

/// Reads a line and keeps its beginning. Returns whether there was one.
fn read_start(file: &mut impl BufRead, content: &mut Vec<u8>) -> std::io::Result<bool> {
    content.clear();
    let mut start = file.by_ref().take(LINE_SIZE_BYTES_MAX as u64);
    start.read_until(b'\n', content)?;
    let is_cut = content.len() == LINE_SIZE_BYTES_MAX && !content.ends_with(b"\n");
    if is_cut && content.contains(&b'\t') {
        file.skip_until(b'\n')?;
    }
    Ok(!content.is_empty())
}

/// Parses the key with which a line begins.
fn parse(content: &[u8]) -> Result<Vec<u8>, StringFault> {
    let line = content.strip_suffix(b"\n").unwrap_or(content);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let tab = line.iter().position(|byte| *byte == b'\t');
    let text = match tab {
        Some(tab) => &line[..tab],
        None if line.is_empty() => return Err(StringFault::Empty),
        None if line.len() > KEY_TEXT_SIZE_BYTES_MAX => return Err(StringFault::Endless),
        None => line,
    };
    let text = str::from_utf8(text).map_err(|error| StringFault::NotUtf8 {
        index: error.valid_up_to(),
    })?;
    let key = unescape(text)?;
    if key.len() > KEY_SIZE_BYTES_MAX {
        let size_bytes = key.len();
        return Err(StringFault::TooLong { size_bytes });
    }
    Ok(key)
}

/// Returns the beginning of a line for a message: quoted, and safe for terminals.
fn shown(content: &[u8]) -> String {
    let start = &content[..content.len().min(4 * (SHOWN_COUNT_MAX + 1))];
    let text = String::from_utf8_lossy(start);
    let text = text.trim_end_matches(['\n', '\r']);
    let shown = text.chars().take(SHOWN_COUNT_MAX);
    let shown: String = shown.flat_map(char::escape_debug).collect();
    let end = if text.chars().count() > SHOWN_COUNT_MAX {
        "..."
    } else {
        ""
    };
    format!("'{shown}{end}'")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn read(content: &[u8]) -> Result<StringKeys, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("names");
        std::fs::write(&path, content).expect("a file");
        read_string_file(&path).map_err(|error| error.to_string())
    }

    fn all(keys: &StringKeys) -> Vec<&[u8]> {
        (0..keys.count()).map(|rank| keys.key(rank)).collect()
    }

    /// Promise: lines and first columns are keys; escapes work; the empty key can be written;
    /// blanks belong to keys. Keys ascend, each once, also from compressed files.
    #[test]
    fn lines_and_first_columns_are_keys() {
        let value = "v".repeat(3 * LINE_SIZE_BYTES_MAX);
        let content = format!("b\na \tone\ttwo\r\n\\x00\\xfF\\t\r\na \n\tempty\nlong\t{value}\né");
        let expected: [&[u8]; 6] = [b"", b"\x00\xff\t", b"a ", b"b", b"long", "é".as_bytes()];
        assert_eq!(all(&read(content.as_bytes()).expect("keys")), expected);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(content.as_bytes()).expect("in memory");
        let packed = packed.finish().expect("in memory");
        assert_eq!(all(&read(&packed).expect("keys")), expected);
        let cut = read(&packed[..packed.len() - 6]).expect_err("cut off");
        assert!(cut.contains("cannot read key file"), "{cut}");
    }

    /// Promise: the longest key is valid, also with escapes. The error of the first line without a
    /// key has its number, its beginning, and the reason.
    #[test]
    fn a_line_without_a_key_is_named() {
        let longest = format!("{}\n{}\n", "k".repeat(4096), "\\x00".repeat(4096));
        assert_eq!(read(longest.as_bytes()).expect("keys").count(), 2);
        let long = format!("a\n{}\n", "k".repeat(4097));
        let endless = "k".repeat(5 * KEY_TEXT_SIZE_BYTES_MAX);
        for (content, expected) in [
            (
                &b"a\n\nb\n"[..],
                "names:2: '' is not a valid key: the line is empty",
            ),
            (
                b"caf\xe9\n",
                "names:1: 'caf\u{fffd}' is not a valid key: invalid UTF-8 at byte 4",
            ),
            (
                b"a\nC:\\data\n",
                "names:2: 'C:\\\\data' is not a valid key: character 4: unknown escape",
            ),
            (
                b"a\\\n",
                "names:1: 'a\\\\' is not a valid key: character 3: the text ends",
            ),
            (
                long.as_bytes(),
                "is not a valid key: the key has 4097 bytes",
            ),
            (
                endless.as_bytes(),
                "the text of the key is longer than 16384 bytes",
            ),
            (b"", "names' has no keys"),
        ] {
            let error = read(content).expect_err("a bad line");
            assert!(
                error.contains(expected) && error.len() < 300,
                "{expected}: {error}"
            );
        }
    }

    /// Promise: each key is found at its rank from any start up to it, and from no later one; other
    /// strings are not found.
    #[test]
    fn ranks_are_found_from_any_start() {
        let lines: Vec<String> = (0..50).map(|rank| format!("{:04}", 2 * rank)).collect();
        let keys = read(lines.join("\n").as_bytes()).expect("keys");
        for start in 0..=51 {
            for (rank, line) in lines.iter().enumerate() {
                let found = keys.rank(line.as_bytes(), start);
                assert_eq!(
                    found,
                    (rank >= start).then_some(rank),
                    "{line} from {start}"
                );
                let absent = format!("{:04}", 2 * rank + 1);
                assert_eq!(keys.rank(absent.as_bytes(), start), None);
            }
        }
        assert!((keys.size_bytes_mean() - 4.0).abs() < 1e-9);
    }
}
