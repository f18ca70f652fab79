//! Figures of clients: throughput by number of threads, tail latencies, time by part.

use farleaf_bench::distribution::Distribution;

use super::config::FigureKind;
use super::measure::PointResult;
use super::points::{ChartPosition, PointBuilder};
pub use super::workload::Workload;
use crate::experiment::plan::{ExperimentTablePlan, WorkPlan};
use crate::experiment::run::Measurement;
use crate::experiment::time::TimeParts;

impl PointBuilder<'_> {
    /// Returns the plan of a workload with this many threads per compute node.
    fn work_of(
        &self,
        workload: Workload,
        distribution: Distribution,
        threads_per_node: usize,
    ) -> WorkPlan {
        WorkPlan {
            threads_per_node,
            ..self.work(workload.spec(distribution), distribution)
        }
    }

    /// Adds the points of such a figure.
    pub(super) fn add_clients(&mut self, kind: &FigureKind, table: &ExperimentTablePlan) {
        match kind {
            FigureKind::Clients {
                workloads,
                distribution,
                threads_per_node,
            } => {
                for workload in workloads {
                    for threads in threads_per_node {
                        let work = self.work_of(*workload, *distribution, *threads);
                        let place = ChartPosition::Number(*threads as f64);
                        self.push(&workload.to_string(), place, table.clone(), work);
                    }
                }
            }
            FigureKind::Latencies {
                workloads,
                distribution,
            } => {
                for workload in workloads {
                    let work = self.work(workload.spec(*distribution), *distribution);
                    let place = ChartPosition::Category(workload.to_string());
                    self.push(distribution.name(), place, table.clone(), work);
                }
            }
            FigureKind::TimeParts {
                workloads,
                distribution,
                threads_per_node,
            } => {
                for workload in workloads {
                    for threads in threads_per_node {
                        let work = self.work_of(*workload, *distribution, *threads);
                        let chart = match threads {
                            1 => format!("{workload} with 1 thread a server"),
                            _ => format!("{workload} with {threads} threads a server"),
                        };
                        let workload = workload.to_string();
                        let place = ChartPosition::Parts { workload };
                        self.push(&chart, place, table.clone(), work);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Returns the 99th percentile of each kind of operation in microseconds, with the kind's name.
pub(super) fn tails(result: &PointResult, name: &str) -> Vec<(String, f64)> {
    let kinds = result.windows.iter().flat_map(|window| &window.kinds);
    let tails = kinds.map(|(kind, report)| {
        let name = format!("{name} {}", kind.name().replace('_', " "));
        (name, report.latency_ns.p99 as f64 / 1000.0)
    });
    tails.collect()
}

/// Returns the mean time parts of a window's operations, over all kinds.
pub(super) fn mean_parts(window: &Measurement) -> TimeParts {
    let mut sum = TimeParts::default();
    for (kind, times) in &window.times {
        let share = window.kinds[kind].count as f64 / window.operation_count.max(1) as f64;
        sum.processor_ns += times.processor_ns * share;
        sum.checksum_ns += times.checksum_ns * share;
        sum.nic_ns += times.nic_ns * share;
        sum.wire_ns += times.wire_ns * share;
        sum.queue_ns += times.queue_ns * share;
        sum.backoff_ns += times.backoff_ns * share;
    }
    sum
}

/// Returns the mean time parts in microseconds, each with its name.
pub(super) fn parts(result: &PointResult) -> Vec<(String, f64)> {
    let windows = result.windows.iter().flat_map(|window| {
        let named = mean_parts(window).named();
        named.map(|(_, name, nanos)| (name.to_owned(), nanos / 1000.0))
    });
    windows.collect()
}

/// Returns a table cell with the mean time parts and the share of each.
pub(super) fn parts_cell(window: &Measurement) -> String {
    let parts = mean_parts(window);
    let total_ns = parts.total_ns().max(1.0);
    let named = parts.named();
    let lines = named.iter().map(|(_, name, nanos)| {
        let percent = nanos * 100.0 / total_ns;
        format!("{name}: {:.3} us, {percent:.1} %", nanos / 1000.0)
    });
    lines.collect::<Vec<String>>().join("\n")
}

/// Returns the share of checksums in the time of operations in the last window, in percent.
pub(super) fn checksum_percent(result: &PointResult) -> Option<f64> {
    let parts = mean_parts(result.windows.last()?);
    Some(parts.checksum_ns * 100.0 / parts.total_ns().max(1.0))
}
