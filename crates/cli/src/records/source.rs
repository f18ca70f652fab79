//! Source of records: a file or stdin.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

use super::RecordsError;

const BUFFER_SIZE_BYTES: usize = 1 << 18;
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];

/// Source of records: a file, or stdin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Stdin,
    File(PathBuf),
}

impl From<PathBuf> for Source {
    /// Converts a path; `-` means stdin.
    fn from(path: PathBuf) -> Self {
        if path.as_os_str() == "-" {
            Self::Stdin
        } else {
            Self::File(path)
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("stdin"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Source {
    /// Returns the size of the file in bytes, if it is known.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Stdin => None,
            Self::File(path) => {
                let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file);
                metadata.map(|metadata| metadata.len())
            }
        }
    }

    /// Opens the unpacked content. The bar counts bytes of the file itself.
    pub(super) fn open(&self, bar: &ProgressBar) -> Result<Box<dyn BufRead>, RecordsError> {
        let opening = |source| RecordsError::Open {
            file: self.to_string(),
            source,
        };
        let raw: Box<dyn Read> = match self {
            Self::Stdin => Box::new(io::stdin().lock()),
            Self::File(path) => {
                let file = File::open(path).map_err(opening)?;
                if file.metadata().map_err(opening)?.is_dir() {
                    return Err(RecordsError::Directory {
                        file: self.to_string(),
                    });
                }
                Box::new(file)
            }
        };
        let mut raw = BufReader::with_capacity(BUFFER_SIZE_BYTES, bar.wrap_read(raw));
        if raw.fill_buf().map_err(opening)?.starts_with(&GZIP_MAGIC) {
            let unpacked = MultiGzDecoder::new(raw);
            Ok(Box::new(BufReader::with_capacity(
                BUFFER_SIZE_BYTES,
                unpacked,
            )))
        } else {
            Ok(Box::new(raw))
        }
    }
}
