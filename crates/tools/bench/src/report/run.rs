//! The report of a run, whose JSON form other tools read: names are not changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::workload::OperationKind;

/// What a run was and what it measured; one JSON object with these field names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The letter of the YCSB core workload.
    pub workload: String,
    /// The search layer; `lsm`: the table is persistent.
    pub index: String,
    /// The fabric; of a persistent table `tcp`, by which clients ask its servers.
    pub fabric: String,
    /// The data set, as [`Dataset`](crate::dataset::Dataset) writes its name.
    pub dataset: String,
    /// The request distribution.
    pub distribution: String,
    /// How many records were loaded.
    pub records: u64,
    /// How many operations were run.
    pub operations: u64,
    /// How many threads ran them.
    pub threads: u64,
    /// The seed of data set and operations.
    pub seed: u64,
    /// The commit of the code that ran.
    pub commit: String,
    /// Whether times are those of a model, not of a clock.
    pub modelled: bool,
    /// All operations over the time from the first to the last.
    pub throughput_ops_per_s: f64,
    /// What a compute node holds of the search layer, all counted, for each key; of a table in far
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_bytes_per_key: Option<f64>,
    /// What the memory nodes hold, all counted, for each key; of a table in far memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_key: Option<f64>,
    /// Operations that failed or yielded something wrong.
    pub errors: u64,
    /// Operations that did not find what must be there.
    pub missing: u64,
    /// Each kind of operation that occurred.
    pub operations_by_kind: BTreeMap<OperationKind, KindReport>,
    /// Slots in a leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Size of keys, of a table of byte strings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_size_bytes: Option<u64>,
    /// Sizes of its values: bytes, or the name of a mix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_size: Option<String>,
    /// How many fields a value has of which an update changes one, where it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_count: Option<u64>,
    /// Size of its pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size_bytes: Option<u64>,
    /// The largest value that lies in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_value_size_bytes: Option<u64>,
    /// How full loading makes leaves, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_percent: Option<u64>,
    /// The error bound of learned models, in keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Operations that each thread keeps in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Over how many pools the table was, where it was over several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u64>,
    /// The most bytes that a session held of the search layer, where there was a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_budget_bytes: Option<u64>,
    /// Links that a lookup in a cached tree may follow before the tree is read anew, where that was
    /// chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_count_max: Option<u32>,
    /// What sessions kept of models that the memory node trains, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_cache: Option<String>,
    /// How often these models did not lead to a key, so the memory node was asked, where there are
    /// some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_count: Option<u64>,
    /// What there is to tell of a persistent table alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<PersistentReport>,
}

/// What a persistent table was, and what its load took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PersistentReport {
    /// How many servers had each record.
    pub replicas: u64,
    /// How many regions the table was cut into.
    pub regions: u64,
    /// When writes were acknowledged: `memory` or `sync`.
    pub durability: String,
    /// Whose servers they were: `own`, started by the benchmark, or those of a `cluster`.
    pub servers: String,
    /// Records loaded over the time that took, by all threads.
    pub load_records_per_s: f64,
    /// What the load has had the devices of own servers write and read, for each record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_device: Option<DeviceReport>,
    /// The same of the workload's operations, for each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
}

/// Bytes of files of all servers together, for each record or operation. What is left to do in the
/// background at the end is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Bytes read.
    pub bytes_read_mean: f64,
    /// Bytes written.
    pub bytes_written_mean: f64,
}

/// What one kind of operation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// How many there were.
    pub count: u64,
    /// How long they took.
    pub latency_ns: LatencySummary,
    /// What they cost in far memory, the fields beside those above; `None`: the table is not there,
    /// or there were none.
    #[serde(flatten)]
    pub far: Option<FarCosts>,
}

impl KindReport {
    /// What they cost, of a table in far memory.
    ///
    /// # Panics
    /// They were of another one.
    pub fn far_costs(&self) -> FarCosts {
        self.far.expect("operations in far memory have costs")
    }
}

/// What one operation of a kind costs in far memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarCosts {
    /// Round trips of one.
    pub round_trips_mean: f64,
    /// Bytes that one read.
    pub bytes_read_mean: f64,
    /// Bytes that one wrote.
    pub bytes_written_mean: f64,
    /// Leaves that one read.
    pub leaves_read_mean: f64,
    /// The share of those that read exactly one leaf.
    pub one_leaf_fraction: f64,
    /// Compare-and-swaps and fetch-and-adds of one.
    #[serde(default)]
    pub atomics_mean: f64,
    /// Rounds that one did again: torn images and locks that were taken.
    #[serde(default)]
    pub retries_mean: f64,
    /// Links that one followed, from leaves and inner nodes that have split or moved.
    #[serde(default)]
    pub links_mean: f64,
}

/// Latencies in nanoseconds, to three significant digits; the maximum is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The median.
    pub p50: u64,
    /// 99 of 100 are not above it.
    pub p99: u64,
    /// 999 of 1,000 are not above it.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl RunReport {
    /// The kind of operation that occurred most, the first one of [`OperationKind`] if several did.
    pub fn main_kind(&self) -> Option<(OperationKind, &KindReport)> {
        let kinds = self.operations_by_kind.iter().rev();
        kinds
            .max_by_key(|(_, report)| report.count)
            .map(|(kind, report)| (*kind, report))
    }
}

/// The reports as JSON: one object a line, each line ended.
///
/// Errors: none that a report with finite numbers can cause; a NaN becomes `null`.
pub fn to_json_lines(reports: &[RunReport]) -> serde_json::Result<String> {
    let mut lines = String::new();
    for report in reports {
        lines.push_str(&serde_json::to_string(report)?);
        lines.push('\n');
    }
    Ok(lines)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run with numbers of all magnitudes.
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

    /// One on a persistent table.
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

    /// Promise: the JSON names and their order, which other tools rely on.
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

    /// Promise: of a persistent table, what is of far memory is absent, and not zero; what it has
    /// of its own is there, that of own servers if there are some.
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

    /// Promise: kinds have these names in JSON, one run is one line, and what is written is read
    /// back.
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

    /// Promise: of kinds that are equally frequent the first one is the main kind.
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
