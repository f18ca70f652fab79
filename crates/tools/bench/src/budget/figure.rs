//! Files of a sweep: all numbers as CSV, and four panels as SVG.

use farleaf_chart::csv::maybe;
use farleaf_chart::panels::{ChartError, Colour, Panel, Panels, Series, draw};

use super::{BudgetPoint, BudgetReport};
use crate::distribution::Distribution;
use crate::report::quantity::{bytes, count};

/// Name of the CSV file.
pub const CSV_NAME: &str = "budget.csv";
/// Name of the SVG file.
pub const SVG_NAME: &str = "budget.svg";

const HEADER: &str = "distribution,budget_percent,budget_bytes,held_bytes,gets,gets_per_s,\
    round_trips_per_get,leaves_per_get,bytes_per_get,one_leaf_fraction,model_pages_per_get,\
    residual_pages_per_get,pages_evicted_per_get,errors,missing";

/// Returns the files of a sweep: names and contents.
///
/// # Errors
/// The plotting library rejects the chart.
pub fn files(report: &BudgetReport) -> Result<Vec<(String, String)>, ChartError> {
    let svg = draw(&panels(report))?;
    Ok(vec![
        (CSV_NAME.to_owned(), csv(report)),
        (SVG_NAME.to_owned(), svg),
    ])
}

/// Returns one line per point; without a budget its fields are empty.
fn csv(report: &BudgetReport) -> String {
    let mut lines = vec![HEADER.to_owned()];
    lines.extend(report.points.iter().map(csv_row));
    lines.push(String::new());
    lines.join("\n")
}

fn csv_row(point: &BudgetPoint) -> String {
    let cells = [
        point.distribution.to_string(),
        maybe(point.percent),
        maybe(point.budget_bytes),
        point.held_bytes.to_string(),
        point.gets.to_string(),
        point.gets_per_s.to_string(),
        point.mean.round_trips.to_string(),
        point.mean.leaves.to_string(),
        point.mean.bytes_read.to_string(),
        point.one_leaf_fraction.to_string(),
        point.mean.model_pages.to_string(),
        point.mean.residual_pages.to_string(),
        point.mean.pages_evicted.to_string(),
        point.errors.to_string(),
        point.missing.to_string(),
    ];
    cells.join(",")
}

/// Returns panels of round trips, leaves, bytes and throughput, one below the other.
fn panels(report: &BudgetReport) -> Panels {
    let panel = |y_label: &str, y_from, value: fn(&BudgetPoint) -> f64| Panel {
        y_label: y_label.to_owned(),
        y_from,
        y_to: y_from,
        series: lines(report, value),
    };
    let table = &report.config.table;
    Panels {
        title: format!(
            "{} keys under metadata budgets, all being {}",
            count(table.records),
            bytes(report.full_bytes as f64)
        ),
        caption: format!(
            "{} fabric, 1 thread, {} gets each after as many warm-up gets; {} slots, fill {} %, \
             epsilon {}; commit {}",
            table.fabric,
            count(table.operations),
            table.slots,
            table.fill_percent,
            table.epsilon_keys,
            table.commit
        ),
        x_label: "metadata budget (% of all)".to_owned(),
        panels: vec![
            panel("round trips per get", 1.0, |point| point.mean.round_trips),
            panel("leaves per get", 1.0, |point| point.mean.leaves),
            panel("bytes read per get", 0.0, |point| point.mean.bytes_read),
            panel("million gets / s", 0.0, |point| point.gets_per_s / 1e6),
        ],
        marks: Vec::new(),
    }
}

/// Returns a line for each distribution.
fn lines(report: &BudgetReport, value: fn(&BudgetPoint) -> f64) -> Vec<Series> {
    let colours = [Colour::Blue, Colour::Orange];
    let distributions = report
        .config
        .distributions
        .iter()
        .zip(colours.into_iter().cycle());
    distributions
        .map(|(distribution, colour)| Series {
            name: distribution.to_string(),
            colour,
            is_dashed: false,
            values: values(report, *distribution, value),
        })
        .collect()
}

/// Returns a distribution's points by budget, ascending.
fn values(
    report: &BudgetReport,
    distribution: Distribution,
    value: fn(&BudgetPoint) -> f64,
) -> Vec<(f64, f64)> {
    let own = report.points.iter();
    let own = own.filter(|point| point.distribution == distribution);
    let mut values: Vec<(f64, f64)> = own
        .filter_map(|point| Some((point.percent?, value(point))))
        .collect();
    values.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    values
}
