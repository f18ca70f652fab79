//! Tests of two small servers that replicate regions to each other.

use std::fs;
use std::path::Path;

use farleaf_bench::replication::figures::{FigureSize, Suite, file_names, files};
use farleaf_bench::replication::{
    Part, Promise, ReplicationConfig, ReplicationFabric, ReplicationKind, ReplicationPhase,
    ReplicationRow, ratios, ratios_text, rows_text, run,
};
use farleaf_bench::runner::Silent;
use farleaf_bench::workload::{OperationKind, WorkloadLetter};

/// Returns the settings of a small run. Half of its records fill L0s of 300 entries, and levels are
/// merged. The log has several segments, for which a backup that builds its trees waits.
fn small(directory: &Path) -> ReplicationConfig {
    ReplicationConfig {
        workloads: vec![WorkloadLetter::A, WorkloadLetter::D],
        records: 40_000,
        operations: 4_000,
        regions: 1,
        background: 1,
        l0_entries: 300,
        growth_factor: 2,
        check_records: 5_000,
        directory: directory.to_owned(),
        ..ReplicationConfig::default()
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("there").next().is_none()
}

/// Promise: every phase of every kind has its row, with every number of its kind. Backups that
/// receive trees flush and merge nothing; those that build them do. Without backups there is no
/// network traffic. Promoted backups were checked, and no file is left.
#[test]
fn rows_are_whole() {
    let place = tempfile::tempdir().expect("a directory");
    let config = small(place.path());
    let rows = run(&config, &Silent).expect("nothing fails");
    let phases = config.phases();
    assert_eq!(rows.len(), 3 * phases.len());
    for (index, row) in rows.iter().enumerate() {
        let kind = ReplicationKind::ALL[index / phases.len()];
        assert_eq!((row.kind, row.phase), (kind, phases[index % phases.len()]));
        check_row(&config, row);
    }
    let total = |kind, of: fn(&ReplicationRow) -> u64| -> u64 {
        rows.iter().filter(|row| row.kind == kind).map(of).sum()
    };
    for kind in [ReplicationKind::None, ReplicationKind::Sent] {
        let worked = total(kind, |row| {
            row.backups.flush_count + row.backups.merge_count
        });
        assert_eq!(worked, 0, "{kind}");
    }
    let built = ReplicationKind::Built;
    assert!(total(built, |row| row.backups.flush_count) > 10);
    assert!(total(built, |row| row.backups.merge_count) > 0);
    assert_eq!(total(built, |row| row.network_index_size_bytes), 0);
    assert!(total(ReplicationKind::Sent, |row| row.network_index_size_bytes) > 0);
    assert!(is_empty(place.path()));

    let (text, ratios) = (rows_text(&rows), ratios(&rows));
    let beside = ratios_text(&ratios);
    for line in text.lines().chain(beside.lines()) {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let load: Vec<_> = ratios
        .iter()
        .filter(|it| it.phase == ReplicationPhase::Load)
        .collect();
    assert_eq!(load.len(), 9, "{beside}");
}

fn check_row(config: &ReplicationConfig, row: &ReplicationRow) {
    assert_eq!(
        row.operation_count,
        config.operation_count(row.phase),
        "{row:?}"
    );
    let counted: u64 = row.tails.iter().map(|tail| tail.count).sum();
    assert_eq!(counted, row.operation_count);
    assert!(row.operations_per_s() > 0.0);
    assert!(row.settled_time_s >= row.time_s);
    assert!(row.level_count >= 2, "{row:?}");
    assert!((5_000..6_000).contains(&row.checked_count), "{row:?}");
    assert!(row.io_amplification() > 0.0);
    let is_load = row.phase == ReplicationPhase::Load;
    assert_eq!(
        row.tail(OperationKind::Insert).is_none(),
        !is_load && row.tails[0].count < 3_000
    );
    let part_ns = |part| row.processor_ns.of(part);
    assert!(part_ns(Part::Operations) > 0 && part_ns(Part::Operations) >= row.log_verbs_ns);
    let (sent, built) = (ReplicationKind::Sent, ReplicationKind::Built);
    assert_eq!(
        row.network_amplification() > 0.0,
        row.kind != ReplicationKind::None
    );
    if is_load {
        assert!(
            row.primaries.flush_count > 20 && row.primaries.merge_count > 0,
            "{row:?}"
        );
        assert_eq!(part_ns(Part::Sending) > 0, row.kind == sent);
        assert_eq!(part_ns(Part::BackupReceived) > 0, row.kind == sent);
        assert_eq!(part_ns(Part::BackupBuilt) > 0, row.kind == built);
        if row.kind != ReplicationKind::None {
            // Keys and values, 12 bytes of each record's header, and padding to words.
            let log = row.network_log_size_bytes as f64 / row.user_size_bytes as f64;
            assert!((1.0..1.3).contains(&log), "{log}");
            assert!(row.network_size_bytes > row.network_log_size_bytes);
        }
    }
}

/// Promise: the same works over `tcp`, and with puts that wait for the devices of all replicas.
#[test]
fn tcp_and_syncs_work() {
    let place = tempfile::tempdir().expect("a directory");
    let config = ReplicationConfig {
        kinds: vec![ReplicationKind::Sent, ReplicationKind::Built],
        workloads: Vec::new(),
        records: 3_000,
        regions: 3,
        background: 2,
        fabric: ReplicationFabric::Tcp,
        ..small(place.path())
    };
    let rows = run(&config, &Silent).expect("nothing fails");
    assert!(rows.iter().all(|row| row.network_amplification() > 1.0));
    let config = ReplicationConfig {
        records: 100,
        promise: Promise::Sync,
        fabric: ReplicationFabric::Mem,
        ..config
    };
    let rows = run(&config, &Silent).expect("nothing fails");
    assert!(
        rows.iter()
            .all(|row| row.backups.log_written_size_bytes > 0)
    );
    assert!(is_empty(place.path()));
}

/// Promise: the figures have exactly the files that were named before; every chart has all kinds,
/// and every value is in a CSV file.
#[test]
fn figures_are_whole() {
    let place = tempfile::tempdir().expect("a directory");
    let size = FigureSize {
        name: "tiny",
        records: 1_500,
        operations: 300,
        regions: 1,
        l0_entries: 100,
    };
    let suite = Suite::new(size, place.path().to_owned(), "test").expect("in range");
    let rows = suite.measure(&Silent).expect("nothing fails");
    let files = files(&suite, &rows).expect("drawn");
    let mut names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    let mut named = file_names();
    names.sort();
    named.sort();
    assert_eq!(names, named);
    for (name, text) in &files {
        if Path::new(&name).extension().is_some_and(|it| it == "svg") {
            for kind in ReplicationKind::ALL {
                assert!(text.contains(kind.name()), "{name} has no {kind}");
            }
            assert!(text.contains("real runs"), "{name}");
        } else {
            assert!(text.lines().count() > 24, "{name}: {text}");
        }
    }
    let (_, page) = files.last().expect("the page");
    assert!(page.contains("not modeled") && page.contains("1.1 to 3.0"));
}
