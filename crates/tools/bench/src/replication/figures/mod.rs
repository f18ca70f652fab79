//! Figures with the subjects of figures 5 to 10 of the Talos paper, from real runs on this machine.
//!
//! | figure | x axis |
//! |---|---|
//! | throughput, and processor time for an operation | size mixes, Load A and Run A to D |
//! | I/O and network amplification | the same |
//! | tails of latencies | Load A, Run A |
//! | processor time by part | Load A, Run A |
//! | growth factor | 4 to 16 |
//! | share of small pairs | 40 to 100 % |
//!
//! Each figure compares no replication, trees sent and trees built. The page does not give their
//! numbers in the paper: we know the subjects of its figures, but not its pages. All numbers are
//! measured, none is modeled.
//!
//! | module | content |
//! |---|---|
//! | `suite` | the runs and their size |
//! | `drawn` | figures of the measurements |
//! | `page` | the page |

mod drawn;
mod page;
mod suite;

use farleaf_chart::chart::{ChartError, draw};

pub use suite::{FigureSize, Suite};

use self::drawn::{Figure, figures};
use self::page::{DrawnFigure, page};
use super::rows::ReplicationRow;

/// Name of the page's file.
pub const PAGE_NAME: &str = "index.html";

/// Returns the files of all figures: names and contents.
///
/// # Errors
/// The plotting library rejects a chart.
pub fn files(suite: &Suite, rows: &[ReplicationRow]) -> Result<Vec<(String, String)>, ChartError> {
    let (mut files, mut all) = (Vec::new(), Vec::new());
    for figure in figures(rows) {
        files.push((figure.csv_name(), figure.csv()));
        let mut charts = Vec::new();
        for chart in &figure.charts {
            let svg = draw(chart, &chart.title, &suite.caption())?;
            files.push((figure.chart_name(&chart.title), svg.clone()));
            charts.push(svg);
        }
        all.push(DrawnFigure { figure, charts });
    }
    files.push((PAGE_NAME.to_owned(), page(suite, rows, &all)));
    Ok(files)
}

/// Returns the names of these files, which do not depend on the measurements.
pub fn file_names() -> Vec<String> {
    let named = |figure: &Figure| {
        let charts = figure.charts.iter();
        let charts = charts.map(|chart| figure.chart_name(&chart.title));
        std::iter::once(figure.csv_name())
            .chain(charts)
            .collect::<Vec<_>>()
    };
    let mut names: Vec<String> = figures(&[]).iter().flat_map(named).collect();
    names.push(PAGE_NAME.to_owned());
    names
}
