//! The folder: CSV, SVG, and the page.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use super::chart::ChartError;

use super::chart::draw;
use super::measure::{Measured, Suite};
use super::page::{DrawnFigure, page};
use super::report::{Chart, FigureReport, figures};

/// Why the folder was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A chart cannot be drawn.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Writes everything into a folder, which is made if it is not there; files of the same names are
/// replaced. Returns the page's path.
///
/// # Errors
/// A chart cannot be drawn, or a file not be written.
pub fn write(suite: &Suite, measured: &Measured, folder: &Path) -> Result<PathBuf, WriteError> {
    fs::create_dir_all(folder).map_err(|source| WriteError::Io {
        path: folder.to_owned(),
        source,
    })?;
    let reports = figures(suite, measured);
    let mut drawn = Vec::with_capacity(reports.len());
    for report in &reports {
        let id = &report.figure.id;
        put(folder, &format!("{id}.csv"), &report.csv)?;
        let mut charts = Vec::with_capacity(report.charts.len());
        for chart in &report.charts {
            let svg = draw(chart, &title(report, chart), &caption(suite))?;
            put(
                folder,
                &format!("{id}-{}.svg", file_name(&chart.title)),
                &svg,
            )?;
            charts.push(svg);
        }
        drawn.push(DrawnFigure { report, charts });
    }
    put(folder, "index.html", &page(suite, &drawn))
}

fn put(folder: &Path, name: &str, text: &str) -> Result<PathBuf, WriteError> {
    let path = folder.join(name);
    match fs::write(&path, text) {
        Ok(()) => Ok(path),
        Err(source) => Err(WriteError::Io { path, source }),
    }
}

fn title(report: &FigureReport<'_>, chart: &Chart) -> String {
    let figure = report.figure.title.split(':').next().unwrap_or_default();
    format!("{figure}: {}", chart.title)
}

/// Every chart says for itself what it is.
fn caption(suite: &Suite) -> String {
    format!(
        "modelled: {} memory nodes, {}; {} records ({})",
        suite.model.memory.node_count.value,
        suite.model.nic.name,
        suite.size.record_count,
        suite.size_name
    )
}

/// The title as part of a file's name.
fn file_name(title: &str) -> String {
    let letters = title.chars().map(|letter| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_lowercase()
        } else {
            '-'
        }
    });
    let name: String = letters.collect();
    name.trim_matches('-').to_owned()
}
