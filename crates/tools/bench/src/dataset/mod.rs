//! Data sets: keys to load, and keys that a run inserts.
//!
//! | name | keys | like |
//! |---|---|---|
//! | `uniform` | uniform over all of u64 | SOSD `uniform_dense`/`uniform_sparse`, YCSB's hashes |
//! | `sequential` | 0, 1, 2, ... | auto-increment ids; inserts are appended |
//! | `normal` | mean 2^63, standard deviation 2^60 | SOSD, ROLEX `normal` |
//! | `lognormal` | exp of a normal with mu 0 and sigma 2, times 2^44 | ALEX, ROLEX `lognormal` |
//! | `clustered` | dense clusters (a quarter taken) anywhere in u64 | composite keys, tenants |
//! | `keys:FILE` | one decimal key per line, plain or gzip | SOSD's real data |
//!
//! For a table of byte strings, the lines of a file are the keys ([`read_string_file`]). A key's
//! number is its rank among all of them, so that a file's draws are ranks.
//!
//! Name, record count and seed decide a data set. The loaded keys do not depend on the number of
//! inserts, so that runs of different workloads load the same keys.

mod draw;
mod file;
mod generate;
mod key_set;
mod strings;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use file::read_key_file;
pub use generate::generate;
pub use key_set::KeySet;
pub use strings::{StringFault, StringKeys, read_string_file};

/// Source of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dataset {
    /// Uniform over the full u64 domain.
    Uniform,
    /// The numbers 0, 1, 2, ...; inserted keys continue in ascending order.
    Sequential,
    /// Normal: mean 2^63, standard deviation 2^60; draws beyond eight deviations are repeated.
    Normal,
    /// Lognormal: mu 0, sigma 2, scaled by 2^44, so that the largest of 10^9 keys is near 2^61.
    Lognormal,
    /// Many dense clusters at random positions, at least one of them above 2^62.
    Clustered,
    /// Keys of a file, see [`read_key_file`] and [`read_string_file`]; a seeded sample if it has
    /// more than requested.
    Keys(PathBuf),
}

/// Errors of data sets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The key file cannot be opened, read or unpacked.
    #[error("cannot read key file '{path}'", path = path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system or the decoder.
        source: std::io::Error,
    },
    /// A line is not a decimal u64.
    #[error("{path}:{line}: expected a decimal key from 0 to 2^64 - 1, found `{content}`", path = path.display())]
    BadLine {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: u64,
        /// Content of the line, shortened if long.
        content: String,
    },
    /// A line does not begin with a valid byte-string key.
    #[error("{path}:{line}: {content} is not a valid key: {fault}", path = path.display())]
    BadString {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: u64,
        /// Content of the line, quoted, shortened if long.
        content: String,
        /// Reason why it is invalid.
        fault: StringFault,
    },
    /// The file has no line.
    #[error("key file '{path}' has no keys", path = path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file has fewer distinct keys than needed for load and inserts.
    #[error("key file '{path}' has {available} distinct keys, but {wanted} are needed", path = path.display())]
    TooFewKeys {
        /// Path of the file.
        path: PathBuf,
        /// Number of distinct keys in the file.
        available: usize,
        /// Number of keys to load and to insert.
        wanted: usize,
    },
    /// No data set has this name.
    #[error(
        "unknown data set `{0}`: expected uniform, sequential, normal, lognormal, clustered or keys:FILE"
    )]
    UnknownName(String),
}

impl fmt::Display for Dataset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Uniform => "uniform",
            Self::Sequential => "sequential",
            Self::Normal => "normal",
            Self::Lognormal => "lognormal",
            Self::Clustered => "clustered",
            Self::Keys(path) => return write!(formatter, "keys:{}", path.display()),
        };
        formatter.pad(name)
    }
}

impl FromStr for Dataset {
    type Err = DatasetError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "uniform" => Ok(Self::Uniform),
            "sequential" => Ok(Self::Sequential),
            "normal" => Ok(Self::Normal),
            "lognormal" => Ok(Self::Lognormal),
            "clustered" => Ok(Self::Clustered),
            _ => match name.strip_prefix("keys:") {
                Some(path) if !path.is_empty() => Ok(Self::Keys(PathBuf::from(path))),
                _ => Err(DatasetError::UnknownName(name.to_owned())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: names parse back, and the error of an unknown one names it.
    #[test]
    fn names_are_read_back() {
        for name in [
            "uniform",
            "sequential",
            "normal",
            "lognormal",
            "clustered",
            "keys:a b.txt",
        ] {
            assert_eq!(name.parse::<Dataset>().unwrap().to_string(), name);
        }
        for name in ["", "keys:", "Uniform"] {
            let error = name.parse::<Dataset>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
    }
}
