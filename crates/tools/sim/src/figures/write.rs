//! Writes the files: CSV, SVG, and the page.

use std::path::PathBuf;

pub use farleaf_chart::chart::ChartError;
pub use farleaf_chart::folder::{Folder, FolderError};

use farleaf_chart::chart::draw;
use farleaf_chart::panels::{self, Panels};

use super::measure::{Suite, SuiteResults};
use super::page::{DrawnFigure, page};
use super::report::{Drawing, FigureReport, figures};
use crate::shown;

/// Command that owns a folder of figures, for [`Folder::claim`].
pub const WRITER: &str = "farleaf figures";

/// Name of the page's file.
pub(super) const PAGE_NAME: &str = "index.html";

/// Errors of writing a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A chart cannot be drawn.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// A file cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Writes all files into a folder once they are drawn, and replaces those of an earlier run.
/// Returns the page's path.
///
/// # Errors
/// A chart cannot be drawn, or a file cannot be written.
pub fn write(
    suite: &Suite,
    measured: &SuiteResults,
    folder: &Folder,
) -> Result<PathBuf, WriteError> {
    let reports = figures(suite, measured);
    let mut drawn = Vec::with_capacity(reports.len());
    let mut files = Vec::new();
    for report in &reports {
        let id = &report.figure.id;
        files.push((csv_name(id), report.csv.clone()));
        let mut charts = Vec::with_capacity(report.charts.len());
        for drawing in &report.charts {
            let (name, svg) = drawn_as_svg(suite, report, drawing)?;
            files.push((chart_name(id, name), svg.clone()));
            charts.push(svg);
        }
        drawn.push(DrawnFigure { report, charts });
    }
    files.push((PAGE_NAME.to_owned(), page(suite, measured, &drawn)));
    folder.replace(&files)?;
    Ok(folder.file(PAGE_NAME))
}

/// Returns a chart as SVG, with its name among those of its figure.
fn drawn_as_svg<'a>(
    suite: &Suite,
    report: &FigureReport<'_>,
    drawing: &'a Drawing,
) -> Result<(&'a str, String), ChartError> {
    match drawing {
        Drawing::Chart(chart) => {
            let name = chart.title.as_str();
            let svg = draw(chart, &title(report, name), &caption(suite))?;
            Ok((name, svg))
        }
        Drawing::Panels(name, drawn) => {
            let titled = Panels {
                title: title(report, name),
                caption: caption(suite),
                ..drawn.clone()
            };
            Ok((name, panels::draw(&titled)?))
        }
    }
}

/// Returns the name of a figure's CSV file.
pub(super) fn csv_name(id: &str) -> String {
    format!("{id}.csv")
}

/// Returns the name of the SVG file of one of its charts.
pub(super) fn chart_name(id: &str, chart: &str) -> String {
    format!("{id}-{}.svg", file_name(chart))
}

fn title(report: &FigureReport<'_>, chart: &str) -> String {
    let figure = report.figure.title.split(':').next().unwrap_or_default();
    format!("{figure}: {chart}")
}

/// Returns the caption, by which every chart states that it is modelled.
fn caption(suite: &Suite) -> String {
    let (size_name, size) = suite.size();
    let profile = suite.profile();
    // The label of a changed copy states that it is changed.
    let own = if profile.differences().is_none() {
        ", not a built-in profile"
    } else {
        ""
    };
    format!(
        "modelled: {}{own}: {} memory nodes, {}; {} records ({size_name})",
        profile.label(),
        suite.model().memory.node_count.value,
        suite.model().nic.name,
        shown::count(size.record_count as u64),
    )
}

/// Returns the title in a form that is valid in a file name.
fn file_name(title: &str) -> String {
    let is_kept = |letter: char| letter.is_ascii_alphanumeric();
    let words = title.split(|letter| !is_kept(letter));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}
