//! Files of records: read whole and checked before anything is loaded.
//!
//! | module | what it holds |
//! |---|---|
//! | [`source`] | a file or stdin, plain or packed |
//! | [`input`] | its lines, one after the other |
//! | [`words`], [`word_line`] | records of whole numbers |
//! | [`strings`], [`tsv`] | records of byte strings |
//! | [`json`] | a record of either kind as an object |
//! | [`fault`] | why a line is no record |
//!
//! Every line is a record: there are no comments and no empty lines, because either may as well be
//! damage. A carriage return before the line feed does not matter, nor does a missing last line
//! feed. Each key is there once. Files that begin with the gzip magic are unpacked, whatever their
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

/// How a line is a record. (The variants have no help of their own, which would make every
/// command's help long.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// Key, tab and value; of words also what [`words`] says.
    #[default]
    Tsv,
    /// An object.
    Json,
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
        key: String,
    },
    /// There is no line.
    #[error("{file} has no records: a line is {form}")]
    Empty { file: String, form: &'static str },
}
