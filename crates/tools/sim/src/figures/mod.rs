//! Figures of papers, drawn from experiments over modeled NICs.
//!
//! TOML files (`experiments` in the repository) define the experiments. The result is one folder: a
//! CSV file for each figure, an SVG file for each chart, and one self-contained HTML page. The page
//! states, at its head and under each chart, that its numbers are modeled, and lists every
//! parameter with its source. Where the paper prints a number, the page shows it beside ours.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | experiments and their sizes, from TOML |
//! | `figure` | one figure of them |
//! | `fields` | parameters of figures, as checks see them |
//! | `kinds` | parameters that figures vary |
//! | [`clients`] | figures of clients |
//! | `called` | figures of the work that memory nodes do for clients |
//! | `workload` | workloads of clients |
//! | `checks` | checks of experiments |
//! | `points` | all experiments of the figures, each as a value |
//! | [`measure`](mod@measure) | runs them on several threads |
//! | `timeline` | measures over time, as panels |
//! | `quantities` | quantities, names and colors that all outputs share |
//! | `report` | results as charts and tables |
//! | `beside` | comparison with the paper's numbers |
//! | `csv` | a figure's numbers as CSV |
//! | `page` | the page |
//! | `glossary` | terms of the page |
//! | `files` | names of the files |
//! | [`write`](mod@write) | writes the files |
//!
//! `farleaf-chart` draws the charts and writes the folder.

pub mod clients;
pub mod config;
pub mod measure;
pub mod write;

mod beside;
mod called;
mod checks;
mod csv;
mod fields;
mod figure;
mod files;
mod glossary;
mod kinds;
mod page;
mod points;
mod quantities;
mod report;
mod timeline;
mod workload;
