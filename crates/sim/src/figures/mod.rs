//! Figures of papers, drawn from experiments over modelled NICs.
//!
//! What is run is said by a TOML file (`experiments/rolex.toml` in the repository), not by code.
//! The result is one folder: a CSV file a figure, an SVG file a chart, and one HTML page that has
//! everything in it and needs no other file. The page says, at its head and under each chart, that
//! its numbers are modelled, and lists every parameter with its source. Where the paper prints a
//! number it stands beside ours; where it prints none, there is none.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | which experiments, of which size, from TOML |
//! | `figure` | one figure of them |
//! | `checks` | what experiments are refused for |
//! | `points` | all experiments of the figures, each as a value |
//! | [`measure`](mod@measure) | they are run, on several threads |
//! | `report` | what they found, as charts and tables |
//! | `chart` | a chart as SVG |
//! | `csv` | a figure's numbers as CSV |
//! | `page` | the page |
//! | `glossary` | what the page's words mean |
//! | `folder` | whose folder it is, and what a former run wrote there |
//! | `list` | the list of it |
//! | `folder_error` | why a folder is not taken, or not written |
//! | `draft` | what is to be put there, written beside it first |
//! | [`write`](mod@write) | everything that is written |

pub mod config;
pub mod measure;
pub mod write;

mod chart;
mod checks;
mod csv;
mod draft;
mod figure;
mod folder;
mod folder_error;
mod glossary;
mod list;
mod page;
mod points;
mod report;
