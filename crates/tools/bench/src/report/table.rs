//! Reports as tables of at most 100 columns, for terminals and log files, without colors.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

use super::quantity::{bytes, count, latency, percentage, rate, short_count};
use super::{DeviceReport, FarCosts, KindReport, PersistentReport, RunReport};
use crate::workload::OperationKind;

const WIDTH_MAX: u16 = 100;

/// Columns of one run, and those of tables in far memory.
const COLUMNS: [&str; 6] = ["operation", "count", "p50", "p99", "p99.9", "max"];
const FAR_COLUMNS: [&str; 5] = ["round\ntrips", "read", "wrote", "leaves", "one\nleaf"];

/// Number of leading columns of a comparison that contain words.
const WORD_COLUMNS: usize = 4;

/// Style of tables: rules above and below, and below the header.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// Formats one run: its settings, its results, and a row for each kind of operation, with repeated
/// rounds and followed links below. (A long file name in the first line is neither cut nor
/// wrapped.)
pub fn run_table(report: &RunReport) -> String {
    let mut text = heading(report);
    let kinds = report.operations_by_kind.values();
    let has_far_costs = kinds.clone().any(|measured| measured.far.is_some());
    let far_columns: &[&str] = if has_far_costs { &FAR_COLUMNS } else { &[] };
    let mut table = table(&[&COLUMNS[..], far_columns].concat());
    left_align(&mut table, 1);
    for (kind, measured) in &report.operations_by_kind {
        table.add_row(kind_row(*kind, measured));
    }
    push_table(&mut text, &table);
    if has_far_costs {
        text.push_str(&totals("retries", report, |far| far.retries_mean));
        text.push_str(&totals("links followed", report, |far| far.links_mean));
    }
    if let Some(persistent) = &report.persistent {
        text.push_str(&persistent_lines(persistent));
    }
    if let Some(fallbacks) = report.fallback_count {
        let operations = report.operations.max(1) as f64;
        let share = percentage(fallbacks as f64 / operations);
        let _ = writeln!(
            text,
            "calls to the memory node: {} ({share})",
            short_count(fallbacks)
        );
    }
    text
}

/// Returns the lines on the load of a persistent table, and on the devices of own servers.
fn persistent_lines(persistent: &PersistentReport) -> String {
    let mut text = format!("load: {} records", rate(persistent.load_records_per_s));
    let device = |what: &str, device: Option<DeviceReport>| {
        device.map_or_else(String::new, |device| {
            format!(
                "devices of all servers, {what}: read {}, wrote {}\n",
                bytes(device.bytes_read_mean),
                bytes(device.bytes_written_mean)
            )
        })
    };
    text.push('\n');
    text.push_str(&device("per loaded record", persistent.load_device));
    text.push_str(&device("per operation", persistent.device));
    text
}

/// Returns a line of a rare event: total numbers, since the mean per operation would round to 0.
fn totals(what: &str, report: &RunReport, mean: impl Fn(&FarCosts) -> f64) -> String {
    let kinds = report.operations_by_kind.iter();
    let kinds = kinds.filter_map(|(kind, measured)| Some((kind, measured, measured.far.as_ref()?)));
    let kinds = kinds.map(|(kind, measured, far)| {
        let total = (mean(far) * measured.count as f64).round();
        #[expect(clippy::cast_sign_loss, reason = "counts are positive")]
        let total = short_count(total as u64);
        format!("{} {total}", kind_name(*kind))
    });
    let kinds: Vec<String> = kinds.collect();
    format!("{what}: {}\n", kinds.join(", "))
}

/// Formats several runs, one row each, with the numbers of the most frequent kind of operation.
pub fn comparison_table(reports: &[RunReport]) -> String {
    let mut table = table(&[
        "YCSB",
        "index",
        "fabric",
        "data set",
        "thread\ncount",
        "rate",
        "p50",
        "p99",
        "round\ntrips",
        "read",
        "meta-\ndata",
        "failed",
    ]);
    left_align(&mut table, WORD_COLUMNS);
    for report in reports {
        table.add_row(comparison_row(report));
    }
    let mut text = String::new();
    push_table(&mut text, &table);
    text.push_str(
        "p50, p99, round trips and bytes read: of the most frequent operation; metadata: per key\n",
    );
    if reports.iter().any(|report| report.modelled) {
        text.push_str("* times are modeled, not measured\n");
    }
    text
}

fn heading(report: &RunReport) -> String {
    let mut text = String::new();
    let modelled = if report.modelled {
        " (times are modeled, not measured)"
    } else {
        ""
    };
    let lines = [
        format!(
            "YCSB {}: {} index, {} fabric, {} keys, {} requests{modelled}",
            report.workload, report.index, report.fabric, report.dataset, report.distribution
        ),
        format!(
            "{} records, {} operations, {} threads, seed {}, commit {}",
            count(report.records),
            count(report.operations),
            report.threads,
            report.seed,
            report.commit
        ),
        achieved(report),
    ];
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    let given = given_options(report);
    if !given.is_empty() {
        let _ = writeln!(text, "{}", given.join(", "));
    }
    text
}

/// Returns the throughput, the size of the table if it is known, and the errors.
fn achieved(report: &RunReport) -> String {
    let a_key = |what: &str, size: Option<f64>| {
        size.map_or_else(String::new, |size| {
            format!("{what} {} per key, ", bytes(size))
        })
    };
    format!(
        "{} operations, {}{}{} errors, {} missing",
        rate(report.throughput_ops_per_s),
        a_key("metadata", report.metadata_bytes_per_key),
        a_key("memory", report.memory_bytes_per_key),
        count(report.errors),
        count(report.missing)
    )
}

/// Returns the set options that not every run has, as name and value.
fn given_options(report: &RunReport) -> Vec<String> {
    let size = |size: Option<u64>| size.map(|size| format!("{size} B"));
    let persistent = report.persistent.as_ref();
    let optional = [
        ("servers", persistent.map(|it| it.servers.clone())),
        ("replicas", persistent.map(|it| it.replicas.to_string())),
        ("regions", persistent.map(|it| it.regions.to_string())),
        ("durability", persistent.map(|it| it.durability.clone())),
        ("slots", report.slots.map(|slots| slots.to_string())),
        ("keys", size(report.key_size_bytes)),
        ("values", report.value_size.clone()),
        ("fields", report.field_count.map(|count| count.to_string())),
        ("pages", size(report.page_size_bytes)),
        ("inline", size(report.inline_value_size_bytes)),
        (
            "fill",
            report.fill_percent.map(|percent| format!("{percent} %")),
        ),
        ("epsilon", report.epsilon.map(|keys| keys.to_string())),
        ("in flight", report.in_flight.map(|count| count.to_string())),
        ("pools", report.partitions.map(|count| count.to_string())),
        (
            "metadata budget",
            report
                .metadata_budget_bytes
                .map(|budget| bytes(budget as f64)),
        ),
        ("models cached", report.model_cache.clone()),
        (
            "links at most",
            report.link_count_max.map(|count| count.to_string()),
        ),
    ];
    optional
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name} {value}")))
        .collect()
}

fn kind_name(kind: OperationKind) -> String {
    match kind {
        OperationKind::ReadModifyWrite => "read+update".to_owned(),
        _ => kind.to_string(),
    }
}

fn kind_row(kind: OperationKind, measured: &KindReport) -> Vec<String> {
    let mut row = vec![
        kind_name(kind),
        short_count(measured.count),
        latency(measured.latency_ns.p50),
        latency(measured.latency_ns.p99),
        latency(measured.latency_ns.p999),
        latency(measured.latency_ns.max),
    ];
    if let Some(far) = &measured.far {
        row.extend([
            format!("{:.2}", far.round_trips_mean),
            bytes(far.bytes_read_mean),
            bytes(far.bytes_written_mean),
            format!("{:.2}", far.leaves_read_mean),
            percentage(far.one_leaf_fraction),
        ]);
    }
    row
}

fn comparison_row(report: &RunReport) -> Vec<String> {
    let star = if report.modelled { "*" } else { "" };
    let mut row = vec![
        format!("{} {}{star}", report.workload, report.distribution),
        report.index.clone(),
        report.fabric.clone(),
        report.dataset.clone(),
        report.threads.to_string(),
        rate(report.throughput_ops_per_s),
    ];
    match report.main_kind() {
        Some((_, measured)) => row.extend([
            latency(measured.latency_ns.p50),
            latency(measured.latency_ns.p99),
            known(measured.far, |far| format!("{:.2}", far.round_trips_mean)),
            known(measured.far, |far| bytes(far.bytes_read_mean)),
        ]),
        None => row.extend(["-", "-", "-", "-"].map(str::to_owned)),
    }
    row.push(known(report.metadata_bytes_per_key, bytes));
    row.push(short_count(report.errors + report.missing));
    // With many columns, units move up to their numbers.
    row.into_iter()
        .enumerate()
        .map(|(column, cell)| {
            if column < WORD_COLUMNS {
                cell
            } else {
                cell.replace(' ', "")
            }
        })
        .collect()
}

/// Formats a known value, or a dash.
fn known<T>(of: Option<T>, show: impl FnOnce(T) -> String) -> String {
    of.map_or_else(|| "-".to_owned(), show)
}

/// Creates a table with rules above and below, and below its header.
pub fn ruled_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header.iter().copied());
    table
}

fn table(header: &[&str]) -> Table {
    let mut table = ruled_table(header);
    table
        .set_width(WIDTH_MAX)
        .set_content_arrangement(ContentArrangement::Dynamic);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_padding((0, 1));
    }
    table
}

/// Left-aligns the first `column_count` columns, those with words, and moves them closer together.
fn left_align(table: &mut Table, column_count: usize) {
    for column in table.column_iter_mut().take(column_count) {
        column.set_cell_alignment(CellAlignment::Left);
        column.set_padding((0, 0));
    }
}

fn push_table(text: &mut String, table: &Table) {
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::run::tests::{example, persistent_example};
    use super::*;

    fn assert_fits(text: &str) {
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH_MAX), "{line}");
        }
    }

    /// Promise: the format of one run.
    #[test]
    fn golden_run_table() {
        let mut report = example();
        (report.slots, report.epsilon) = (Some(8), Some(16.0));
        report.link_count_max = Some(0);
        (report.model_cache, report.fallback_count) = (Some("all".to_owned()), Some(25_000));
        let text = run_table(&report);
        assert_fits(&text);
        assert_eq!(
            format!("\n{text}"),
            "
YCSB B: learned index, shm fabric, lognormal keys, zipfian requests
10,000,000 records, 500,000 operations, 8 threads, seed 42, commit 0123abc
1.23 M/s operations, metadata 0.21 B per key, memory 24.5 B per key, 0 errors, 0 missing
slots 8, epsilon 16, models cached all, links at most 0
─────────────────────────────────────────────────────────────────────────────────────────────
operation     count      p50      p99    p99.9      max  round   read  wrote  leaves     one
                                                         trips                          leaf
─────────────────────────────────────────────────────────────────────────────────────────────
read        475,123   850 ns  5.95 µs  51.0 µs  12.8 ms   1.00  176 B    0 B    1.25  99.3 %
read+update  24,877  12.3 µs  86.4 µs   741 µs   185 ms   1.00  176 B    0 B    1.25   100 %
─────────────────────────────────────────────────────────────────────────────────────────────
retries: read 0, read+update 0
links followed: read 118,781, read+update 6,219
calls to the memory node: 25,000 (5.0 %)
"
        );
    }

    /// Promise: the format of several runs; modeled ones are marked.
    #[test]
    fn golden_comparison_table() {
        let mut other = example();
        (other.workload, other.index, other.fabric) = ("E".into(), "sherman".into(), "sim".into());
        (other.dataset, other.distribution) = ("sequential".into(), "uniform".into());
        (other.threads, other.modelled, other.errors, other.missing) = (1_000, true, 3, 1);
        other.operations_by_kind = BTreeMap::new();
        let text = comparison_table(&[example(), other]);
        assert_fits(&text);
        assert_eq!(
            format!("\n{text}"),
            "
────────────────────────────────────────────────────────────────────────────────────────────────
YCSB       index   fabric data set   thread     rate    p50     p99  round  read  meta-  failed
                                      count                          trips         data
────────────────────────────────────────────────────────────────────────────────────────────────
B zipfian  learned shm    lognormal       8  1.23M/s  850ns  5.95µs   1.00  176B  0.21B       0
E uniform* sherman sim    sequential   1000  1.23M/s      -       -      -     -  0.21B       4
────────────────────────────────────────────────────────────────────────────────────────────────
p50, p99, round trips and bytes read: of the most frequent operation; metadata: per key
* times are modeled, not measured
"
        );
    }

    /// Promise: the format of a run on a persistent table: no columns of far memory.
    #[test]
    fn golden_persistent_table() {
        let text = run_table(&persistent_example());
        assert_fits(&text);
        assert_eq!(
            format!("\n{text}"),
            "
YCSB B: lsm index, tcp fabric, lognormal keys, zipfian requests
10,000,000 records, 500,000 operations, 8 threads, seed 42, commit 0123abc
1.23 M/s operations, 0 errors, 0 missing
servers own, replicas 3, regions 6, durability memory, values SD
────────────────────────────────────────────────────────
operation     count      p50      p99    p99.9      max
────────────────────────────────────────────────────────
read        475,123   850 ns  5.95 µs  51.0 µs  12.8 ms
read+update  24,877  12.3 µs  86.4 µs   741 µs   185 ms
────────────────────────────────────────────────────────
load: 123 k/s records
devices of all servers, per loaded record: read 0 B, wrote 750 B
devices of all servers, per operation: read 12.0 B, wrote 37.5 B
"
        );
        let compared = comparison_table(&[persistent_example()]);
        let row = compared.lines().nth(4).expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[9..], ["-", "-", "-", "0"], "{compared}");
    }

    /// Promise: the widest numbers and a long file name fit into 100 columns.
    #[test]
    fn the_widest_numbers_fit() {
        let mut report = example();
        report.dataset = "keys:some/folder/with-a-long-name/and-a-long-file-name.txt.gz".into();
        for measured in report.operations_by_kind.values_mut() {
            measured.count = 1_000_000_000;
            measured.latency_ns.max = 888_888_888_888;
            let far = measured.far.as_mut().expect("of far memory");
            (far.bytes_read_mean, far.bytes_written_mean) = (123_456.0, 123_456.0);
            (far.leaves_read_mean, far.round_trips_mean) = (123.45, 123.45);
            (far.retries_mean, far.links_mean) = (12_345.0, 12_345.0);
        }
        let table = run_table(&report);
        assert_fits(table.split_once("missing\n").expect("a heading").1);
        assert!(
            table.contains("1.00 G") && table.contains("889 s"),
            "{table}"
        );
        assert_fits(&comparison_table(&[report]));
    }
}
