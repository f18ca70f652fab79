//! Presentation of measurements: charts as SVG, fields of CSV, and the folder for a run's files.
//!
//! | module | content |
//! |---|---|
//! | [`chart`] | one chart, of bars or of lines |
//! | [`panels`] | several charts of lines over one axis, one below the other |
//! | [`page`] | the style of pages of figures |
//! | [`csv`] | fields of a CSV file |
//! | [`shown`] | numbers and names, never longer than a line |
//! | [`folder`] | the folder, its owner, and an earlier run's files |
//! | `list` | the list of these files |
//! | `draft` | files that are written before they replace others |
//! | `folder_error` | errors of claiming or writing a folder |
//!
//! The crate is independent of stores and clocks: the same numbers give the same text.

#![forbid(unsafe_code)]

pub mod chart;
pub mod csv;
pub mod folder;
pub mod page;
pub mod panels;
pub mod shown;

mod draft;
mod folder_error;
mod list;
mod series;
