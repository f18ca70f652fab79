//! What measurements are shown with: charts as SVG, fields of CSV, and the folder that a run
//! writes its files into.
//!
//! | module | what it holds |
//! |---|---|
//! | [`chart`] | one chart, of bars or of lines |
//! | [`panels`] | several charts of lines over one axis, one below the other |
//! | [`page`] | what pages of figures look like |
//! | [`csv`] | fields of a CSV file |
//! | [`shown`] | numbers and names, never longer than a line |
//! | [`folder`] | whose folder it is, and what a former run wrote there |
//! | `list` | the list of it |
//! | `draft` | what is to be put there, written beside it first |
//! | `folder_error` | why a folder is not taken, or not written |
//!
//! It knows nothing of stores, and has no clock: the same numbers make the same text.

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
