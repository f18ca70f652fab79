//! What figures 5 to 10 of the Talos paper are about, of real runs on this machine.
//!
//! | figure | over what |
//! |---|---|
//! | throughput, and processor time for an operation | size mixes, Load A and Run A to D |
//! | I/O and network amplification | the same |
//! | tails of latencies | Load A, Run A |
//! | processor time by part | Load A, Run A |
//! | growth factor | 4 to 16 |
//! | share of small pairs | 40 to 100 % |
//!
//! Each with no replication, trees sent and trees built. Which of them has which number in the
//! paper is not said: we have its subjects, and not its pages. Nothing here is modelled.
//!
//! | module | what it holds |
//! |---|---|
//! | `suite` | which runs there are, and how large |
//! | `drawn` | figures of what they have measured |
//! | `page` | the page |

mod drawn;
mod page;
mod suite;

use farleaf_chart::chart::{ChartError, draw};

pub use suite::{FigureSize, Suite};

use self::drawn::{Figure, figures};
use self::page::{DrawnFigure, page};
use super::rows::ReplicationRow;

/// What the page is called.
pub const PAGE_NAME: &str = "index.html";

/// The files of all figures: names and texts.
///
/// # Errors
/// The plotting library refuses a chart.
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

/// What these files are called, whatever is measured.
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
