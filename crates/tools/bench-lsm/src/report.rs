//! Report: medians and ratios.

use comfy_table::Table;
use farleaf_bench::report::median;
use serde::Serialize;

use crate::comparison::{LsmComparisonPlan, PhaseMeasurement};
use crate::engines::EngineName;

/// Row of one phase of one engine.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the phase.
    pub phase: &'static str,
    /// Name of the engine.
    pub engine: &'static str,
    /// Operations per second, the median of the rounds.
    pub operations_per_second: f64,
    /// Ratio of Farleaf's throughput to this engine's, the median of the rounds' ratios.
    pub farleaf_ratio: Option<f64>,
    /// Device bytes written per byte put, the median of the rounds.
    pub write_amplification: Option<f64>,
}

/// Results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Phases, and engines within them, in the order of the plan.
    pub rows: Vec<Row>,
    /// Engines that are not part of this build.
    pub skipped: Vec<&'static str>,
}

impl Report {
    /// Summarizes the measurements.
    pub fn new(
        plan: &LsmComparisonPlan,
        measured: &[Vec<Vec<PhaseMeasurement>>],
        skipped: &[EngineName],
    ) -> Self {
        let own = plan
            .engines
            .iter()
            .position(|name| *name == EngineName::Farleaf);
        let mut rows = Vec::new();
        for (number, phase) in plan.phases.iter().enumerate() {
            for (name, phases) in plan.engines.iter().zip(measured) {
                let rounds = &phases[number];
                let ratios = own.map(|own| {
                    let both = measured[own][number].iter().zip(rounds);
                    both.map(|(own, other)| own.operations_per_second / other.operations_per_second)
                });
                let speeds = rounds.iter().map(|it| it.operations_per_second);
                rows.push(Row {
                    phase: phase.text(),
                    engine: name.text(),
                    operations_per_second: median(speeds).expect("there is a round"),
                    farleaf_ratio: ratios.and_then(median),
                    write_amplification: median(
                        rounds.iter().filter_map(|it| it.write_amplification),
                    ),
                });
            }
        }
        Self {
            rows,
            skipped: skipped.iter().map(|name| name.text()).collect(),
        }
    }

    /// Formats the report as a table for people.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.set_header([
            "phase",
            "engine",
            "operations/s",
            "Farleaf/this",
            "device bytes written per byte put",
        ]);
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{it:.2}"));
        for row in &self.rows {
            table.add_row([
                row.phase.to_owned(),
                row.engine.to_owned(),
                format!("{:.0}", row.operations_per_second),
                number(row.farleaf_ratio),
                number(row.write_amplification),
            ]);
        }
        let mut text = table.to_string();
        for name in &self.skipped {
            text.push_str("\nskipped: ");
            text.push_str(name);
            text.push_str(" is not part of this build");
        }
        text
    }
}
