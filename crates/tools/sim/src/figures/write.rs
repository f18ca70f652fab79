//! Writes the files: CSV, SVG, and the page.

use std::path::PathBuf;

pub use farleaf_chart::chart::ChartError;
pub use farleaf_chart::folder::{Folder, FolderError};

use farleaf_chart::chart::draw;
use farleaf_chart::panels::{self, Panels};

use super::files::{PAGE_NAME, chart_name, csv_name};
use super::measure::{Suite, SuiteResults};
use super::page::{DrawnFigure, page};
use super::report::{Drawing, FigureReport, figures};
use crate::display;

/// Command that owns a folder of figures, for [`Folder::claim`].
pub const WRITER: &str = "farleaf figures";

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

fn title(report: &FigureReport<'_>, chart: &str) -> String {
    let figure = report.figure.title.split(':').next().unwrap_or_default();
    format!("{figure}: {chart}")
}

/// Returns the caption, by which every chart states that it is modeled.
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
        "modeled: {}{own}: {} memory nodes, {}; {} records ({size_name})",
        profile.label(),
        suite.model().memory.node_count.value,
        suite.model().nic.name,
        display::count(size.record_count as u64),
    )
}
