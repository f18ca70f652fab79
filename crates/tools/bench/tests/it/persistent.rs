//! Tests of workloads on persistent tables: on own servers, and in an existing cluster.

use std::path::Path;
use std::sync::Arc;

use farleaf::persistent::{
    ClientOptions, Cluster, Durability, PersistentTableOptions, SharedCoordinator,
};
use farleaf::{LayerKind, Secret};
use farleaf_bench::dataset::KeySet;
use farleaf_bench::report::RunReport;
use farleaf_bench::runner::{
    BenchError, FabricKind, LoadedStore, PersistentConfig, RunConfig, ServersConfig, Silent,
    Strings, generate_keys, run,
};
use farleaf_bench::workload::{OperationKind, WorkloadLetter};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::Embedded;
use farleaf_server::{RegionServer, ServerOptions};

use crate::faults::FaultRecorder;
use crate::{run_right, small};

const TABLE: &str = "usertable";

/// Returns the settings of a run that takes a second or two, with values of these sizes.
fn persistent(value_size: &str, persistent: PersistentConfig) -> RunConfig {
    RunConfig {
        records: 2_000,
        operations: 1_000,
        strings: Some(Strings {
            value_size: value_size.parse().expect("a size"),
            ..Strings::default()
        }),
        persistent: Some(persistent),
        ..small(LayerKind::Learned, FabricKind::Shm)
    }
}

fn own(directory: &Path, replicas: usize) -> PersistentConfig {
    PersistentConfig {
        replicas,
        regions: 2,
        durability: None,
        servers: ServersConfig::Own {
            directory: directory.to_owned(),
            l0_size_bytes: 1 << 20,
        },
    }
}

/// Cluster of several servers.
struct BenchTestCluster {
    cluster: Cluster,
    /// Dropped before their directories.
    _servers: Vec<RegionServer>,
    _scratch: tempfile::TempDir,
}

impl BenchTestCluster {
    fn new(server_count: u64) -> Self {
        let coordinator = SharedCoordinator::new(Embedded::default(), "here");
        admin::create_cluster(&coordinator).expect("a new cluster");
        let scratch = tempfile::tempdir().expect("a directory");
        let secret = Secret::from_text("the secret of these tests").expect("long enough");
        let start = |number: u64| {
            let directory = scratch.path().join(format!("server-{number}"));
            let mut options = ServerOptions::new(&directory);
            (options.number, options.secret) = (Some(number), Some(secret.clone()));
            RegionServer::start(coordinator.clone(), &options).expect("started")
        };
        let servers = (1..=server_count).map(start).collect();
        let client = ClientOptions {
            secret: Some(secret),
            ..ClientOptions::default()
        };
        Self {
            cluster: Cluster::new(coordinator, client),
            _servers: servers,
            _scratch: scratch,
        }
    }

    fn config(&self, replicas: usize) -> PersistentConfig {
        PersistentConfig {
            replicas,
            regions: 2,
            durability: None,
            servers: ServersConfig::Cluster(self.cluster.clone()),
        }
    }

    fn table_names(&self) -> Vec<String> {
        let tables = self.cluster.tables().expect("tables");
        tables.into_iter().map(|table| table.name).collect()
    }
}

fn kinds(report: &RunReport) -> Vec<OperationKind> {
    report.operations_by_kind.keys().copied().collect()
}

/// Promise: all workloads run correctly on own servers, by several threads, with values of a mix.
/// Reports omit far memory and contain device bytes; no files are left.
#[test]
fn all_workloads_on_own_servers() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = RunConfig {
        threads: 3,
        ..persistent("SD", own(directory.path(), 3))
    };
    let reports = run_right(&config);
    let [a, _, _, _, e, f] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(kinds(a), [OperationKind::Read, OperationKind::Update]);
    assert_eq!(kinds(e), [OperationKind::Insert, OperationKind::Scan]);
    assert_eq!(
        kinds(f),
        [OperationKind::Read, OperationKind::ReadModifyWrite]
    );
    for report in &reports {
        assert_eq!((&report.index[..], &report.fabric[..]), ("lsm", "tcp"));
        assert_eq!(report.value_size.as_deref(), Some("SD"));
        assert_eq!(
            (report.metadata_bytes_per_key, report.fill_percent),
            (None, None)
        );
        assert!(
            report
                .operations_by_kind
                .values()
                .all(|it| it.far.is_none())
        );
        let persistent = report.persistent.as_ref().expect("it is persistent");
        assert_eq!(
            (
                persistent.replicas,
                persistent.regions,
                &persistent.servers[..]
            ),
            (3, 2, "own")
        );
        assert_eq!(persistent.durability, "memory");
        assert!(
            persistent.device.is_some() && persistent.load_device.is_some(),
            "{persistent:?}"
        );
    }
    let left = std::fs::read_dir(directory.path()).expect("there").count();
    assert_eq!(left, 0, "files of servers");
}

/// Promise: with one replica and `sync` durability, the bytes written are counted, at least once
/// per record; values of several fields are correct.
#[test]
fn one_replica_writes_what_it_acknowledges() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = RunConfig {
        workloads: vec![WorkloadLetter::A],
        strings: Some(Strings {
            field_count: 10,
            ..Strings::default()
        }),
        records: 500,
        operations: 200,
        ..persistent("L", own(directory.path(), 1))
    };
    let report = run_right(&config).remove(0);
    let persistent = report.persistent.expect("it is persistent");
    assert_eq!(persistent.durability, "sync");
    let load = persistent.load_device.expect("own servers");
    assert!(load.bytes_written_mean >= 1_024.0, "{load:?}");
    let device = persistent.device.expect("own servers");
    assert!(device.bytes_written_mean >= 300.0, "{device:?}");
}

/// Promise: in an existing cluster, the table is created, and dropped when its workload is done;
/// the next one can have its name. Device bytes, which are not counted here, are absent.
#[test]
fn a_cluster_is_as_it_was() {
    let founded = BenchTestCluster::new(2);
    let config = RunConfig {
        workloads: vec![WorkloadLetter::D, WorkloadLetter::E],
        ..persistent(
            "MD",
            PersistentConfig {
                durability: Some(Durability::Sync),
                ..founded.config(2)
            },
        )
    };
    for report in run_right(&config) {
        let persistent = report.persistent.expect("it is persistent");
        assert_eq!(
            (&persistent.servers[..], &persistent.durability[..]),
            ("cluster", "sync")
        );
        assert_eq!((persistent.device, persistent.load_device), (None, None));
        assert!(persistent.load_records_per_s > 0.0);
    }
    assert_eq!(founded.table_names(), Vec::<String>::new());
}

/// Promise: an existing table with the name is not touched, and reported.
#[test]
fn a_table_that_is_there_stays() {
    let founded = BenchTestCluster::new(1);
    let options = PersistentTableOptions {
        replica_count: 1,
        ..PersistentTableOptions::default()
    };
    let table = founded.cluster.create_table(TABLE, &options).expect("made");
    table.put(b"mine", b"still").expect("put");
    let refused = run(&persistent("S", founded.config(1)), &Silent);
    let error = refused.expect_err("the name is taken");
    assert!(matches!(error, BenchError::TableIsThere { .. }), "{error}");
    assert!(
        error.to_string().contains("farleaf table drop usertable"),
        "{error}"
    );
    assert_eq!(
        table.get(b"mine").expect("got").as_deref(),
        Some(&b"still"[..])
    );
    assert_eq!(founded.table_names(), [TABLE]);
}

/// Runs workload E, or C, after a change of the loaded table.
fn run_planted(
    workload: WorkloadLetter,
    plant: impl FnOnce(&Cluster, &KeySet, &Strings),
) -> (RunReport, Vec<String>) {
    let founded = BenchTestCluster::new(1);
    let config = persistent("SD", founded.config(1));
    let keys: Arc<KeySet> = generate_keys(&config, &Silent).expect("keys");
    let store = LoadedStore::load(&config, &keys, workload, &Silent).expect("loaded");
    plant(&founded.cluster, &keys, &config.strings.expect("strings"));
    let heard = FaultRecorder::default();
    let report = store.run(&heard).expect("a run");
    (report, heard.0.into_inner())
}

/// Promise: gets, scans and the final check detect a table that lost records, and has records of
/// other keys or with a flipped bit.
#[test]
fn a_cluster_that_lies_is_found_out() {
    for workload in [WorkloadLetter::C, WorkloadLetter::E] {
        let (report, faults) = run_planted(workload, |cluster, keys, strings| {
            let table = cluster.open_table(TABLE).expect("there");
            let (mut key, mut value) = (Vec::new(), Vec::new());
            for (index, number) in keys.loaded().iter().enumerate() {
                strings.key(*number, &mut key);
                match index % 4 {
                    0 => assert!(table.delete(&key).expect("deleted")),
                    1 => {
                        value = table.get(&key).expect("got").expect("there");
                        let mut flipped = value.clone();
                        *flipped.last_mut().expect("bytes") ^= 1;
                        table.put(&key, &flipped).expect("put");
                    }
                    // Value of its neighbor.
                    2 => table.put(&key, &value).expect("put"),
                    _ => {}
                }
            }
        });
        assert!(report.missing >= 500, "{workload}: {report:?}");
        assert!(report.errors >= 1_000, "{workload}: {report:?}");
        assert_eq!(faults.len(), 8, "the first are described: {faults:?}");
    }
}

/// Promise: after the table was dropped, threads end with an error each, instead of failing
/// operation by operation.
#[test]
fn a_table_that_is_gone_ends_the_threads() {
    let (report, faults) = run_planted(WorkloadLetter::C, |cluster, _, _| {
        cluster.drop_table(TABLE).expect("dropped");
        while cluster
            .tables()
            .expect("tables")
            .iter()
            .any(|it| it.name == TABLE)
        {}
    });
    assert!(report.operations < 1_000, "{report:?}");
    // The error of the thread, and that of the final check.
    assert_eq!(report.errors, 2, "{faults:?}");
    assert!(faults[0].contains("failed: "), "{faults:?}");
}
