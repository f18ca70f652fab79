//! Report of a run, whose JSON form other tools read: names must not change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::workload::OperationKind;

/// Settings and results of a run; one JSON object with these field names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Letter of the YCSB core workload.
    pub workload: String,
    /// Search layer; `lsm` for a persistent table.
    pub index: String,
    /// Fabric; `tcp` for a persistent table, as clients use it to reach the servers.
    pub fabric: String,
    /// Data set, by the name that [`Dataset`](crate::dataset::Dataset) writes.
    pub dataset: String,
    /// Request distribution.
    pub distribution: String,
    /// Number of loaded records.
    pub records: u64,
    /// Number of operations.
    pub operations: u64,
    /// Number of threads.
    pub threads: u64,
    /// Seed of data set and operations.
    pub seed: u64,
    /// Commit of the code that ran.
    pub commit: String,
    /// Whether times are modeled, not measured.
    pub modelled: bool,
    /// Throughput: all operations over the time from the first to the last.
    pub throughput_ops_per_s: f64,
    /// Bytes per key that a compute node holds of the search layer, in total; of a table in far
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_bytes_per_key: Option<f64>,
    /// Bytes per key that the memory nodes hold, in total; of a table in far memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_key: Option<f64>,
    /// Operations that failed or returned a wrong answer.
    pub errors: u64,
    /// Operations that did not find an existing record.
    pub missing: u64,
    /// Results of each kind of operation that occurred.
    pub operations_by_kind: BTreeMap<OperationKind, KindReport>,
    /// Slots of a leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Size of keys, of a table of byte strings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_size_bytes: Option<u64>,
    /// Sizes of the table's values: bytes, or the name of a mix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_size: Option<String>,
    /// Number of fields of a value, of which an update changes one, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_count: Option<u64>,
    /// Size of the table's pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size_bytes: Option<u64>,
    /// Size of the largest value that is stored in a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_value_size_bytes: Option<u64>,
    /// Percentage of a leaf's slots that the load fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_percent: Option<u64>,
    /// Error bound of learned models, in keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Operations that each thread keeps in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Number of pools of the table, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u64>,
    /// Metadata budget of a session in bytes, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_budget_bytes: Option<u64>,
    /// Links that a lookup in a cached tree may follow before it rereads the tree, if this was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_count_max: Option<u32>,
    /// Part of the models that sessions cached, if the memory node trains them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_cache: Option<String>,
    /// Number of keys to which these models did not lead, so that the memory node was asked, if
    /// there are such models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_count: Option<u64>,
    /// Results that only persistent tables have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<PersistentReport>,
}

/// Settings of a persistent table, and the cost of its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PersistentReport {
    /// Number of servers that had each record.
    pub replicas: u64,
    /// Number of regions of the table.
    pub regions: u64,
    /// Durability of acknowledged writes: `memory` or `sync`.
    pub durability: String,
    /// Origin of the servers: `own` if the benchmark started them, or `cluster`.
    pub servers: String,
    /// Records loaded per second, by all threads.
    pub load_records_per_s: f64,
    /// Device bytes per record of own servers during the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_device: Option<DeviceReport>,
    /// Device bytes per operation of own servers during the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
}

/// Bytes of files of all servers together, per record or operation. Background work that is left at
/// the end is not included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Mean bytes read.
    pub bytes_read_mean: f64,
    /// Mean bytes written.
    pub bytes_written_mean: f64,
}

/// Results of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// Number of operations.
    pub count: u64,
    /// Latencies of the operations.
    pub latency_ns: LatencySummary,
    /// Costs in far memory, as fields beside those above; `None` if the table is elsewhere, or
    /// there were no operations.
    #[serde(flatten)]
    pub far: Option<FarCosts>,
}

impl KindReport {
    /// Returns the costs, of a table in far memory.
    ///
    /// # Panics
    /// The table was not in far memory.
    pub fn far_costs(&self) -> FarCosts {
        self.far.expect("operations in far memory have costs")
    }
}

/// Costs of one kind of operation in far memory, per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarCosts {
    /// Mean round trips.
    pub round_trips_mean: f64,
    /// Mean bytes read.
    pub bytes_read_mean: f64,
    /// Mean bytes written.
    pub bytes_written_mean: f64,
    /// Mean number of leaves read.
    pub leaves_read_mean: f64,
    /// Share of operations that read exactly one leaf.
    pub one_leaf_fraction: f64,
    /// Mean number of compare-and-swaps and fetch-and-adds.
    #[serde(default)]
    pub atomics_mean: f64,
    /// Mean number of repeated rounds: torn images and locks that were taken.
    #[serde(default)]
    pub retries_mean: f64,
    /// Mean number of links followed, from leaves and inner nodes that have split or moved.
    #[serde(default)]
    pub links_mean: f64,
}

/// Latencies in nanoseconds, to three significant digits; the maximum is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Median latency.
    pub p50: u64,
    /// 99th percentile of the latency.
    pub p99: u64,
    /// 99.9th percentile of the latency.
    pub p999: u64,
    /// Longest latency.
    pub max: u64,
}

impl RunReport {
    /// Returns the most frequent kind of operation; of several, the first one of [`OperationKind`].
    pub fn main_kind(&self) -> Option<(OperationKind, &KindReport)> {
        let kinds = self.operations_by_kind.iter().rev();
        kinds
            .max_by_key(|(_, report)| report.count)
            .map(|(kind, report)| (*kind, report))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns one JSON object per line.
    fn to_json_lines(reports: &[RunReport]) -> serde_json::Result<String> {
        let lines = reports.iter().map(serde_json::to_string);
        lines.map(|line| Ok(line? + "\n")).collect()
    }

    /// Returns a report with numbers of all magnitudes.
    pub(in super::super) fn example() -> RunReport {
        let kind = |count, p50, one_leaf_fraction| KindReport {
            count,
            latency_ns: LatencySummary {
                p50,
                p99: p50 * 7,
                p999: p50 * 60,
                max: p50 * 15_000,
            },
            far: Some(FarCosts {
                round_trips_mean: 1.004,
                bytes_read_mean: 176.0,
                bytes_written_mean: 0.0,
                leaves_read_mean: 1.25,
                one_leaf_fraction,
                atomics_mean: 0.0,
                retries_mean: 0.0,
                links_mean: 0.25,
            }),
        };
        let operations_by_kind = BTreeMap::from([
            (OperationKind::Read, kind(475_123, 850, 0.993)),
            (OperationKind::ReadModifyWrite, kind(24_877, 12_345, 1.0)),
        ]);
        RunReport {
            workload: "B".to_owned(),
            index: "learned".to_owned(),
            fabric: "shm".to_owned(),
            dataset: "lognormal".to_owned(),
            distribution: "zipfian".to_owned(),
            records: 10_000_000,
            operations: 500_000,
            threads: 8,
            seed: 42,
            commit: "0123abc".to_owned(),
            modelled: false,
            throughput_ops_per_s: 1_234_567.0,
            metadata_bytes_per_key: Some(0.213),
            memory_bytes_per_key: Some(24.5),
            errors: 0,
            missing: 0,
            operations_by_kind,
            slots: None,
            key_size_bytes: None,
            field_count: None,
            value_size: None,
            page_size_bytes: None,
            inline_value_size_bytes: None,
            fill_percent: None,
            epsilon: None,
            in_flight: None,
            partitions: None,
            metadata_budget_bytes: None,
            link_count_max: None,
            model_cache: None,
            fallback_count: None,
            persistent: None,
        }
    }

    /// Returns a report of a persistent table.
    pub(in super::super) fn persistent_example() -> RunReport {
        let mut report = example();
        (report.index, report.fabric) = ("lsm".to_owned(), "tcp".to_owned());
        (report.metadata_bytes_per_key, report.memory_bytes_per_key) = (None, None);
        for measured in report.operations_by_kind.values_mut() {
            measured.far = None;
        }
        report.value_size = Some("SD".to_owned());
        report.persistent = Some(PersistentReport {
            replicas: 3,
            regions: 6,
            durability: "memory".to_owned(),
            servers: "own".to_owned(),
            load_records_per_s: 123_456.0,
            load_device: Some(DeviceReport {
                bytes_read_mean: 0.0,
                bytes_written_mean: 750.5,
            }),
            device: Some(DeviceReport {
                bytes_read_mean: 12.0,
                bytes_written_mean: 37.5,
            }),
        });
        report
    }

    /// Promise: the JSON names and their order do not change; other tools rely on them.
    #[test]
    fn golden_json() {
        let mut report = example();
        report
            .operations_by_kind
            .remove(&OperationKind::ReadModifyWrite);
        let golden = concat!(
            r#"{"workload":"B","index":"learned","fabric":"shm","dataset":"lognormal","#,
            r#""distribution":"zipfian","records":10000000,"operations":500000,"threads":8,"#,
            r#""seed":42,"commit":"0123abc","modelled":false,"#,
            r#""throughput_ops_per_s":1234567.0,"metadata_bytes_per_key":0.213,"#,
            r#""memory_bytes_per_key":24.5,"errors":0,"missing":0,"operations_by_kind":"#,
            r#"{"read":{"count":475123,"latency_ns":{"p50":850,"p99":5950,"p999":51000,"#,
            r#""max":12750000},"round_trips_mean":1.004,"bytes_read_mean":176.0,"#,
            r#""bytes_written_mean":0.0,"leaves_read_mean":1.25,"one_leaf_fraction":0.993,"#,
            r#""atomics_mean":0.0,"retries_mean":0.0,"links_mean":0.25}}"#,
        );
        assert_eq!(
            to_json_lines(&[report.clone()]).expect("finite"),
            format!("{golden}}}\n")
        );
        (report.slots, report.fill_percent) = (Some(8), Some(75));
        (report.epsilon, report.in_flight) = (Some(16.5), Some(4));
        (report.metadata_budget_bytes, report.link_count_max) = (Some(4096), Some(0));
        (report.model_cache, report.fallback_count) = (Some("all".to_owned()), Some(9));
        let more = format!(
            "{golden},\"slots\":8,\"fill_percent\":75,\"epsilon\":16.5,\"in_flight\":4,\
             \"metadata_budget_bytes\":4096,\"link_count_max\":0,\"model_cache\":\"all\",\
             \"fallback_count\":9}}\n"
        );
        assert_eq!(to_json_lines(&[report]).expect("finite"), more);
    }

    /// Promise: a persistent table's report omits values of far memory instead of reporting zeros.
    /// The report has the table's own values, and those of own servers if there are any.
    #[test]
    fn what_cannot_be_known_is_absent() {
        let mut report = persistent_example();
        report
            .operations_by_kind
            .remove(&OperationKind::ReadModifyWrite);
        let persistent = report.persistent.as_mut().expect("it is one");
        (persistent.load_device, persistent.device) = (None, None);
        let golden = concat!(
            r#""throughput_ops_per_s":1234567.0,"errors":0,"missing":0,"operations_by_kind":"#,
            r#"{"read":{"count":475123,"latency_ns":{"p50":850,"p99":5950,"p999":51000,"#,
            r#""max":12750000}}},"value_size":"SD","persistent":{"replicas":3,"regions":6,"#,
            r#""durability":"memory","servers":"own","load_records_per_s":123456.0}}"#,
        );
        let line = to_json_lines(&[report.clone()]).expect("finite");
        assert!(line.trim_end().ends_with(golden), "{line}");
        let read: RunReport = serde_json::from_str(&line).expect("a report");
        assert_eq!(read, report);
    }

    /// Promise: kinds have these names in JSON, one run is one line, and the output parses back.
    #[test]
    fn one_line_a_run_is_read_back() {
        let far = Some(FarCosts::default());
        let measured = KindReport {
            far,
            ..KindReport::default()
        };
        let kinds = OperationKind::ALL.map(|kind| (kind, measured));
        let report = RunReport {
            operations_by_kind: BTreeMap::from(kinds),
            ..example()
        };
        let lines = [report.clone(), example(), persistent_example()];
        let lines = to_json_lines(&lines).expect("finite");
        for name in ["read", "update", "insert", "scan", "read_modify_write"] {
            assert!(lines.contains(&format!("\"{name}\":{{\"count\"")), "{name}");
        }
        let read: Vec<RunReport> = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("a report"))
            .collect();
        assert_eq!(read, [report, example(), persistent_example()]);
    }

    /// Promise: of equally frequent kinds the first one is the main kind.
    #[test]
    fn the_main_kind_is_the_most_frequent() {
        let mut report = example();
        assert_eq!(
            report.main_kind().map(|(kind, _)| kind),
            Some(OperationKind::Read)
        );
        for kind in report.operations_by_kind.values_mut() {
            kind.count = 5;
        }
        assert_eq!(
            report.main_kind().map(|(kind, _)| kind),
            Some(OperationKind::Read)
        );
        report.operations_by_kind.clear();
        assert_eq!(report.main_kind(), None);
    }
}
