//! Figures of papers, drawn from experiments over modelled NICs.
//!
//! What is run is said by TOML files (`experiments` in the repository), not by code.
//! The result is one folder: a CSV file a figure, an SVG file a chart, and one HTML page that has
//! everything in it and needs no other file. The page says, at its head and under each chart, that
//! its numbers are modelled, and lists every parameter with its source. Where the paper prints a
//! number it stands beside ours; where it prints none, there is none.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | which experiments, of which size, from TOML |
//! | `figure` | one figure of them |
//! | `kinds` | what figures vary |
//! | [`clients`] | figures of how clients fare |
//! | `called` | figures of what memory nodes do for clients |
//! | `checks` | what experiments are refused for |
//! | `points` | all experiments of the figures, each as a value |
//! | [`measure`](mod@measure) | they are run, on several threads |
//! | `timeline` | what is measured over time, as panels |
//! | `report` | what they found, as charts and tables |
//! | `beside` | the paper's numbers, and ours beside them |
//! | `csv` | a figure's numbers as CSV |
//! | `page` | the page |
//! | `glossary` | what the page's words mean |
//! | [`write`](mod@write) | everything that is written |
//!
//! Charts, and the folder that they are written into, are `farleaf-chart`'s.

pub mod clients;
pub mod config;
pub mod measure;
pub mod write;

mod beside;
mod called;
mod checks;
mod csv;
mod figure;
mod glossary;
mod kinds;
mod page;
mod points;
mod report;
mod timeline;
