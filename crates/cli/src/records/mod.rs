//! Reads files of records whole and checks them before anything is loaded.
//!
//! | module | contents |
//! |---|---|
//! | [`source`] | a file or stdin, plain or gzip |
//! | [`input`] | lines of the file |
//! | [`words`], [`word_line`] | records of integers |
//! | [`strings`], [`tsv`] | records of byte strings |
//! | [`json`] | records of either kind as objects |
//! | [`fault`] | reasons why a line is not a valid record |
//!
//! Every line is a record. Comments and empty lines are errors, because they may be signs of
//! corruption. A carriage return before the line feed and a missing last line feed are allowed.
//! Duplicate keys are errors. Files that begin with the gzip magic are unpacked, whatever their
//! name.

mod fault;
mod input;
mod json;
mod source;
mod strings;
mod tsv;
mod word_line;
mod words;

use std::io;

use clap::ValueEnum;

pub(crate) use fault::LineFault;
pub(crate) use input::Input;
pub(crate) use source::Source;
pub(crate) use strings::StringRecords;
pub(crate) use words::{WordRecord, read_words};

/// Format of a line. (The variants have no help of their own, which would make every command's help
/// long.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// Key, tab and value; of words also what [`words`] says.
    #[default]
    Tsv,
    /// Key, tab and value as they are, without escapes (`--raw`).
    #[value(skip)]
    RawTsv,
    /// Key, tab and value, hexadecimal (`--hex`).
    #[value(skip)]
    HexTsv,
    /// An object.
    Json,
}

/// Error in a file of records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsError {
    /// The file cannot be opened.
    #[error("cannot open '{file}': {source}")]
    Open { file: String, source: io::Error },
    /// The path names a directory.
    #[error("'{file}' is a directory; name a file of records, or - for stdin")]
    Directory { file: String },
    /// Reading or unpacking failed.
    #[error("cannot read '{file}' after line {line}: {source}{hint}")]
    Read {
        file: String,
        line: u64,
        source: io::Error,
        hint: &'static str,
    },
    /// A line is not a valid record.
    #[error("{file}:{line}: {content} is not a valid record: {fault}")]
    BadLine {
        file: String,
        line: u64,
        content: String,
        fault: LineFault,
    },
    /// A key occurs twice.
    #[error(
        "{file}:{line}: duplicate key {key}, first on line {first_line}; remove one of the lines"
    )]
    Twice {
        file: String,
        line: u64,
        first_line: u64,
        key: String,
    },
    /// The format is for byte strings, and the table has words.
    #[error(
        "cannot load '{file}' with {option}: the table has words, not bytes; leave {option} out"
    )]
    NotForWords { file: String, option: &'static str },
}
