//! Key files of integers: one decimal u64 per line, plain or gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::DatasetError;
use crate::quantity::key_of;

/// Maximal length of a line: more than the longest key (20 digits) with some blanks. A longer line
/// is an error and is not read into memory.
const LINE_BYTES_MAX: usize = 64;

const BUFFER_SIZE_BYTES: usize = 1 << 18;
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];

/// Reads the keys of a file, ascending and without duplicates; blanks around a key are ignored. A
/// file that begins with the gzip magic is unpacked, whatever its name.
///
/// # Errors
/// The file cannot be read, has a line that is not a key (or empty), or has no line.
pub fn read_key_file(path: &Path) -> Result<Vec<u64>, DatasetError> {
    let mut file = open(path).map_err(|source| DatasetError::Io {
        path: path.to_owned(),
        source,
    })?;
    let mut keys = read_lines(path, &mut file)?;
    if keys.is_empty() {
        return Err(DatasetError::Empty {
            path: path.to_owned(),
        });
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Opens a file, unpacked if it begins with the gzip magic.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::with_capacity(BUFFER_SIZE_BYTES, File::open(path)?);
    if !file.fill_buf()?.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(file));
    }
    let unpacked = MultiGzDecoder::new(file);
    Ok(Box::new(BufReader::with_capacity(
        BUFFER_SIZE_BYTES,
        unpacked,
    )))
}

fn read_lines(path: &Path, file: &mut impl BufRead) -> Result<Vec<u64>, DatasetError> {
    let mut keys = Vec::new();
    let mut content = Vec::with_capacity(LINE_BYTES_MAX + 1);
    for line in 1.. {
        content.clear();
        file.take(LINE_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut content)
            .map_err(|source| DatasetError::Io {
                path: path.to_owned(),
                source,
            })?;
        if content.is_empty() {
            break;
        }
        let bad_line = || {
            let mut shown = String::from_utf8_lossy(content.trim_ascii()).into_owned();
            if content.len() > LINE_BYTES_MAX {
                shown.push_str("...");
            }
            DatasetError::BadLine {
                path: path.to_owned(),
                line,
                content: shown,
            }
        };
        keys.push(key_of(content.trim_ascii()).ok_or_else(bad_line)?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn read(content: &[u8]) -> Result<Vec<u64>, DatasetError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cities.txt");
        std::fs::write(&path, content).expect("a file");
        read_key_file(&path)
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).expect("in memory");
        encoder.finish().expect("in memory")
    }

    /// Promise: keys are sorted and deduplicated; 0 and the largest u64 are keys; blanks, carriage
    /// returns and a missing last line feed do not matter.
    #[test]
    fn keys_are_sorted_and_deduplicated() {
        let keys = read(b"18446744073709551615\n7\r\n 0\t\n7\n007\n3").expect("keys");
        assert_eq!(keys, [0, 3, 7, u64::MAX]);
    }

    /// Promise: gzip is recognized by its magic, and its members are concatenated.
    #[test]
    fn gzip_is_known_by_its_magic() {
        let packed = [gzip(b"5\n1\n"), gzip(b"3\n")].concat();
        assert_eq!(read(&packed).expect("keys"), [1, 3, 5]);
    }

    /// Promise: the error of an invalid line names file, number and content. Invalid are words,
    /// signs, fractions, numbers from 2^64 on, empty lines, invalid UTF-8, and lines without end.
    #[test]
    fn a_bad_line_is_named() {
        let long = [&b"1\n2\n"[..], &[b'9'; 5_000]].concat();
        let cases: [(&[u8], u64, &str); 8] = [
            (b"1\n2\nthree\n", 3, "three"),
            (b"-1\n", 1, "-1"),
            (b"1\n+2\n", 2, "+2"),
            (b"1.5\n", 1, "1.5"),
            (b"1\n18446744073709551616\n", 2, "18446744073709551616"),
            (b"1\n\n2\n", 2, ""),
            (b"1\n\xFF\xFE\n", 2, "\u{FFFD}\u{FFFD}"),
            (&long, 3, "9..."),
        ];
        for (content, line, shown) in cases {
            for content in [content.to_vec(), gzip(content)] {
                let text = read(&content).expect_err("a bad line").to_string();
                assert!(text.contains(&format!("cities.txt:{line}: ")), "{text}");
                assert!(
                    text.contains(&format!("{shown}`")) && text.len() < 300,
                    "{text}"
                );
            }
        }
    }

    /// Promise: a file without keys is an error, compressed or not.
    #[test]
    fn a_file_without_keys_is_an_error() {
        for content in [Vec::new(), gzip(b"")] {
            assert!(matches!(read(&content), Err(DatasetError::Empty { .. })));
        }
    }

    /// Promise: a missing file and a truncated gzip file are errors that name it.
    #[test]
    fn an_unreadable_file_is_named() {
        let missing = read_key_file(&PathBuf::from("/nonexistent/keys.txt")).expect_err("none");
        assert!(
            missing.to_string().contains("/nonexistent/keys.txt"),
            "{missing}"
        );
        let packed = gzip(b"1\n2\n3\n");
        let cut = read(&packed[..packed.len() - 6]).expect_err("cut off");
        assert!(matches!(cut, DatasetError::Io { .. }), "{cut}");
    }
}
