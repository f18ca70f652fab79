//! CSV files of figures: everything that was measured, with empty fields where nothing was.

use farleaf_bench::report::KindReport;
use farleaf_bench::workload::OperationKind;
use farleaf_chart::csv::{maybe, quoted};

use super::config::{Figure, FigureKind, Servers};
use super::measure::{PointResult, Suite};
use super::points::ChartPosition;
use super::quantities::{end_ms, metadata_per_key};
use crate::experiment::plan::WorkPlan;
use crate::experiment::run::Measurement;
use crate::nic::network::Utilisation;

/// Columns before those of the stages.
const HEAD: [&str; 21] = [
    "modelled_testbed",
    "chart",
    "quantity",
    "x",
    "layer",
    "distribution",
    "keys",
    "record_count",
    "slots",
    "fill_percent",
    "epsilon_keys",
    "memory_node_count",
    "memory_nics_per_node",
    "threads_per_node",
    "in_flight_count",
    "train_thread_count",
    "retraining",
    "window",
    "operation_count",
    "duration_ns",
    "operations_per_s",
];
/// Columns after those of the stages.
const TAIL: [&str; 28] = [
    "key_count",
    "metadata_bytes_per_key",
    "retraining_count",
    "retraining_ns",
    "retrained_leaf_count",
    "retrained_record_count",
    "leaf_count",
    "model_count",
    "fallback_count",
    "trained_count",
    "trained_sub_model_count",
    "trained_leaf_count",
    "due_ns_sum",
    "kind",
    "kind_count",
    "latency_ns_p50",
    "latency_ns_p99",
    "round_trips_mean",
    "bytes_read_mean",
    "bytes_written_mean",
    "leaves_read_mean",
    "one_leaf_fraction",
    "processor_ns_mean",
    "checksum_ns_mean",
    "nic_ns_mean",
    "wire_ns_mean",
    "queue_ns_mean",
    "backoff_ns_mean",
];

/// Returns one line for each kind of operation of each window; without operations, one for each
/// table. A field is empty if nothing was measured.
pub(super) fn csv(suite: &Suite, figure: &Figure, results: &[&PointResult]) -> String {
    let stages = Utilisation::default().stages().map(|(name, ..)| name);
    let header: Vec<&str> = HEAD.iter().chain(&stages).chain(&TAIL).copied().collect();
    let mut lines = vec![header.join(",")];
    for result in results {
        if result.windows.is_empty() {
            let cells = line(suite, &figure.kind, result, None);
            lines.push(cells.join(","));
        }
        for (index, window) in result.windows.iter().enumerate() {
            for (kind, report) in &window.kinds {
                let of = (index, window, *kind, report);
                lines.push(line(suite, &figure.kind, result, Some(of)).join(","));
            }
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the quantity of the column `x`.
fn quantity(kind: &FigureKind) -> &'static str {
    match kind {
        FigureKind::Growth { .. } => "inserted_percent",
        FigureKind::Timeline { .. } => "time_ms",
        FigureKind::Ratios { .. } => "read_percent",
        FigureKind::Keys { .. } => "keys",
        FigureKind::Threads { .. } | FigureKind::Clients { .. } => "threads_per_node",
        FigureKind::Workloads { .. }
        | FigureKind::Latencies { .. }
        | FigureKind::TimeParts { .. } => "workload",
        FigureKind::ModelCaches { .. } => "model_cache",
        FigureKind::Speculation { .. } => "speculation",
        FigureKind::Mixes { .. } => "mix",
        FigureKind::Training { .. } => "train_thread_count",
        FigureKind::Servers { .. } => "memory_nic_count",
        FigureKind::Epsilon { .. } => "epsilon_keys",
        FigureKind::Slots { .. } => "slots",
        FigureKind::Metadata { .. } => "record_count",
        FigureKind::Models { .. } => "fill_percent",
    }
}

fn x(kind: &FigureKind, result: &PointResult, window: usize) -> String {
    let table = &result.point.table;
    match &result.point.place {
        ChartPosition::Category(_) if matches!(kind, FigureKind::Metadata { .. }) => {
            table.record_count.to_string()
        }
        ChartPosition::Category(_) if matches!(kind, FigureKind::Models { .. }) => {
            table.fill_percent.to_string()
        }
        ChartPosition::Category(name) => quoted(name),
        ChartPosition::Parts { workload } => quoted(workload),
        ChartPosition::Number(number) => number.to_string(),
        ChartPosition::Growth { percent_per_window } => {
            (percent_per_window * (window + 1) as f64).to_string()
        }
        ChartPosition::Time { .. } => end_ms(&result.windows, window).to_string(),
    }
}

/// Window, measurement and kind of operation of a line.
type OfWindow<'a> = (usize, &'a Measurement, OperationKind, &'a KindReport);

fn line(
    suite: &Suite,
    kind: &FigureKind,
    result: &PointResult,
    of: Option<OfWindow<'_>>,
) -> Vec<String> {
    let (point, table) = (&result.point, &result.point.table);
    let work = point.work.as_ref();
    let distribution = work.map(|work| {
        let own = work.workload.distribution;
        work.distribution.unwrap_or(own).name().to_owned()
    });
    let window = of.map(|(_, window, ..)| window);
    let stages = Utilisation::default().stages();
    let stages = window.map_or_else(
        || vec![String::new(); stages.len()],
        |it| {
            it.utilisation
                .stages()
                .map(|(.., share)| share.to_string())
                .to_vec()
        },
    );
    let training = window.and_then(|it| it.training);
    let servers = point.servers.unwrap_or_else(|| Servers::of(suite.model()));
    let head = [
        quoted(&suite.profile().label()),
        quoted(&point.chart),
        quantity(kind).to_owned(),
        x(kind, result, of.map_or(0, |(index, ..)| index)),
        point.layer.to_string(),
        distribution.unwrap_or_default(),
        quoted(&table.keys.to_string()),
        table.record_count.to_string(),
        table.slots.to_string(),
        table.fill_percent.to_string(),
        table.epsilon_keys.to_string(),
        servers.node_count.to_string(),
        servers.nics_per_node.to_string(),
        maybe(work.map(|it| it.threads_per_node)),
        maybe(work.map(|it| it.in_flight_count)),
        maybe(training.and(work.map(|it| it.models.train_thread_count))),
        maybe(work.map(WorkPlan::retrains)),
        maybe(of.map(|(index, ..)| index)),
        maybe(window.map(|it| it.operation_count)),
        maybe(window.map(|it| it.duration_ns)),
        maybe(window.map(|it| it.operations_per_s)),
    ];
    let times = of.and_then(|(_, window, kind, _)| window.times.get(&kind));
    let named = times.copied().unwrap_or_default().named();
    let times = named.map(|(.., nanos)| maybe(times.map(|_| nanos)));
    let line = head.into_iter().chain(stages).chain(tail(result, of));
    line.chain(times).collect()
}

/// Returns the columns after the stages, except times.
fn tail(result: &PointResult, of: Option<OfWindow<'_>>) -> [String; 22] {
    let window = of.map(|(_, window, ..)| window);
    let report = of.map(|(_, _, kind, report)| (kind, report));
    let far = report.and_then(|(_, it)| it.far);
    let retraining = window.and_then(|it| it.retraining);
    let training = window.and_then(|it| it.training);
    let record_count = result.point.table.record_count as u64;
    let keys = window.map_or(record_count, |it| it.key_count);
    let metadata = window.map_or_else(|| metadata_per_key(result), |it| it.metadata_bytes_per_key);
    [
        keys.to_string(),
        metadata.to_string(),
        maybe(retraining.map(|it| it.retraining_count)),
        maybe(retraining.map(|it| it.time_ns)),
        maybe(retraining.map(|it| it.leaf_count)),
        maybe(retraining.map(|it| it.record_count)),
        result.leaf_count.to_string(),
        result.model_count.to_string(),
        maybe(window.map(|it| it.fallback_count)),
        maybe(training.map(|it| it.done_count)),
        maybe(training.map(|it| it.sub_model_count)),
        maybe(training.map(|it| it.leaf_count)),
        maybe(training.map(|it| it.waited_ns)),
        maybe(report.map(|(kind, _)| kind.name())),
        maybe(report.map(|(_, it)| it.count)),
        maybe(report.map(|(_, it)| it.latency_ns.p50)),
        maybe(report.map(|(_, it)| it.latency_ns.p99)),
        maybe(far.map(|it| it.round_trips_mean)),
        maybe(far.map(|it| it.bytes_read_mean)),
        maybe(far.map(|it| it.bytes_written_mean)),
        maybe(far.map(|it| it.leaves_read_mean)),
        maybe(far.map(|it| it.one_leaf_fraction)),
    ]
}
