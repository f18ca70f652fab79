//! Replicas are compared with their primary, and directories of older versions are verified.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::ids::{ReplicaNumber, ServerId};
use farleaf_cluster::record::ReplicaReport;
use farleaf_lsm::log::record::{
    EngineId, RecordKind, RecordSum, SEGMENT_HEADER_SIZE_BYTES, encode_record_header,
    segment_number,
};
use farleaf_lsm::place::{LogNumber, SEGMENT_SIZE_BYTES};
use farleaf_trial::fleet::view;
use farleaf_trial::load::wait_served;

use crate::bits::{RECORD_COUNT, data, key_of, load, value_of};
use crate::test_cluster::TestCluster;

const PATIENCE: Duration = Duration::from_mins(1);
/// Interval that never ends during a test.
const NEVER_MS: u64 = 3_600_000;

/// Place of a log segment in the file of a copy.
struct Place {
    engine: EngineId,
    number: LogNumber,
    offset: u64,
}

/// Returns the closed log segments of a copy, oldest first.
fn closed_segments(data: &Path) -> Vec<Place> {
    let log = fs::read(data.join("log")).expect("it is there");
    let segments = log.chunks(SEGMENT_SIZE_BYTES as usize).zip(0_u64..);
    let places = segments.filter_map(|(bytes, index)| {
        let header = bytes.first_chunk::<SEGMENT_HEADER_SIZE_BYTES>()?;
        let engine = EngineId(u64::from_le_bytes(*header[8..].first_chunk()?));
        Some(Place {
            engine,
            number: segment_number(header, engine)?,
            offset: index * SEGMENT_SIZE_BYTES,
        })
    });
    let mut places: Vec<Place> = places.collect();
    places.sort_by_key(|it| it.number);
    places.pop();
    assert!(!places.is_empty(), "no segment is closed");
    places
}

fn write(data: &Path, bytes: &[u8], offset: u64) {
    let log = fs::OpenOptions::new().write(true).open(data.join("log"));
    let log = log.expect("it is there");
    log.write_all_at(bytes, offset).expect("written");
}

/// Removes the oldest closed log segment of a copy, as if it had never been written: a fault of
/// older versions.
fn leave_out(data: &Path) {
    let place = &closed_segments(data)[0];
    let zeros = vec![0; SEGMENT_SIZE_BYTES as usize];
    write(data, &zeros, place.offset);
}

/// Ends the oldest closed log segment of a copy before its first record, with valid checksums.
fn cut_without_a_trace(data: &Path) {
    let place = &closed_segments(data)[0];
    let at = place.number.start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
    let (header, sum) = RecordSum::of(RecordKind::End, b"", b"");
    let end = encode_record_header(header, sum.at(place.engine, at));
    write(data, &end, place.offset + SEGMENT_HEADER_SIZE_BYTES as u64);
}

/// Returns the path of the note of a server's only replica.
fn note(test_cluster: &TestCluster, index: usize) -> PathBuf {
    let data = data(test_cluster, index);
    data.parent().expect("a replica").join("REPLICA")
}

/// Changes a note to what it is after the directory of an older version was adopted.
fn forget_verification(test_cluster: &TestCluster, index: usize) {
    let path = note(test_cluster, index);
    let text = fs::read_to_string(&path).expect("it is there");
    let older = text.replace(",\"is_verified\":true", "");
    assert!(older.len() < text.len(), "{text}");
    fs::write(&path, older).expect("written");
}

/// Creates servers whose engines flush early and read the log only from disk, and one more that
/// only has the master. Also returns the interval, in ms, at which an unverified copy is read.
fn test_cluster(server_count: usize, scrub_interval: Duration) -> (TestCluster, Arc<AtomicU64>) {
    let first_interval_ms = Arc::new(AtomicU64::new(NEVER_MS));
    let shared = Arc::clone(&first_interval_ms);
    let test_cluster = TestCluster::with(server_count + 1, move |index, options| {
        options.is_candidate = index == server_count;
        options.scrub_interval = scrub_interval;
        let interval_ms = shared.load(Ordering::Relaxed);
        options.first_scrub_interval = Duration::from_millis(interval_ms);
        options.engine.log_memory_size_bytes = 0;
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let master = ServerId(server_count as u64 + 1);
    admin::set_drain(&test_cluster.coordinator, master, true).expect("embedded");
    (test_cluster, first_interval_ms)
}

/// Stops all servers, first the one with the master, so that the record stays unchanged.
fn stop_all(test_cluster: &mut TestCluster) {
    for index in (0..test_cluster.servers.len()).rev() {
        test_cluster.stop(index);
    }
}

fn start_all(test_cluster: &mut TestCluster) {
    for index in 0..test_cluster.servers.len() {
        test_cluster.start(index);
    }
}

/// Returns the servers with a replica of a table's region, with their replica numbers, in that
/// order. Of equally new copies the first one continues.
fn members(test_cluster: &TestCluster, table: &PersistentTable) -> Vec<(usize, ReplicaNumber)> {
    let region = view(&test_cluster.coordinator).regions_of(table.id())[0].clone();
    let members = region.members();
    let mut members: Vec<_> = members
        .map(|it| (it.server.0 as usize - 1, it.number))
        .collect();
    members.sort_by_key(|it| it.1);
    members
}

/// Returns the servers' reports about the replicas of a table's region: its primary first, if it
/// serves.
fn reports(test_cluster: &TestCluster, table: &PersistentTable) -> Vec<ReplicaReport> {
    let view = view(&test_cluster.coordinator);
    let region = view.regions_of(table.id())[0].clone();
    let replicas = region.primary.into_iter();
    let replicas = replicas.chain(region.backups.iter().map(|it| it.replica));
    let reports = replicas.filter_map(|it| view.report(region.region, it));
    reports.cloned().collect()
}

fn wait(
    test_cluster: &TestCluster,
    table: &PersistentTable,
    is_so: impl Fn(&[ReplicaReport]) -> bool,
) {
    let since = Instant::now();
    loop {
        let reports = reports(test_cluster, table);
        if is_so(&reports) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "{reports:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns which replicas report that they are verified.
fn finished(reports: &[ReplicaReport]) -> Vec<Option<bool>> {
    let verifications = reports.iter().map(|it| it.verification);
    verifications.map(|it| Some(it?.is_finished)).collect()
}

fn all_is_read(table: &PersistentTable) {
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)), "{number}");
    }
}

/// A backup whose log lacks records is found by comparison with its primary's, although its own
/// checksums are valid. The primary reports it, and the backup is filled again and has everything
/// when it is promoted (REPLICATION-17).
#[test]
fn a_backup_that_differs_is_found_and_filled_again() {
    let (mut test_cluster, _) = test_cluster(2, Duration::from_millis(20));
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    load(&table);
    test_cluster.wait_replicated(&table, 2);
    wait(&test_cluster, &table, |reports| {
        let verifications: Vec<_> = reports.iter().filter_map(|it| it.verification).collect();
        let is_passed = verifications.iter().all(|it| it.ended_at_unix_s.is_some());
        verifications.len() == 2 && is_passed
    });
    let primary = test_cluster.primary(&table);
    let backup = 1 - primary;
    let before = view(&test_cluster.coordinator).regions_of(table.id())[0].backups[0].replica;
    cut_without_a_trace(&data(&test_cluster, backup));
    wait(&test_cluster, &table, |reports| {
        let primary = reports.first().and_then(|it| it.primary.as_ref());
        let mismatch = primary.and_then(|it| it.mismatches.first());
        mismatch.is_some_and(|it| it.replica == before.number && it.part.starts_with("log segment"))
    });
    farleaf_trial::fleet::wait_regions(&test_cluster.coordinator, &table, |_, region| {
        region.replicas().all(|it| it != before)
    });
    test_cluster.wait_replicated(&table, 2);
    wait(&test_cluster, &table, |reports| {
        let primary = reports.first().and_then(|it| it.primary.as_ref());
        primary.is_some_and(|it| it.mismatches.is_empty() && it.mismatch_count == 1)
    });
    all_is_read(&table);
    test_cluster.stop(primary);
    all_is_read(&table);
}

/// Backups of directories that older versions have written are verified when their primary fills
/// them, with log segments that they lack. The primary is verified when it has read all its data,
/// and reports until then that it is not. Verified copies stay verified.
#[test]
fn directories_of_older_versions_are_verified() {
    let (mut test_cluster, first_interval_ms) = test_cluster(3, Duration::from_millis(NEVER_MS));
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    load(&table);
    test_cluster.wait_replicated(&table, 3);
    wait(&test_cluster, &table, |it| finished(it) == [Some(true); 3]);
    let before = members(&test_cluster, &table);
    stop_all(&mut test_cluster);
    leave_out(&data(&test_cluster, before[1].0));
    (0..3).for_each(|index| forget_verification(&test_cluster, index));
    start_all(&mut test_cluster);
    wait_served(&table);
    test_cluster.wait_replicated(&table, 3);
    wait(&test_cluster, &table, |reports| {
        finished(reports) == [Some(false), Some(true), Some(true)]
    });
    all_is_read(&table);
    first_interval_ms.store(1, Ordering::Relaxed);
    stop_all(&mut test_cluster);
    start_all(&mut test_cluster);
    wait_served(&table);
    test_cluster.wait_replicated(&table, 3);
    wait(&test_cluster, &table, |it| finished(it) == [Some(true); 3]);
    assert_eq!(
        members(&test_cluster, &table),
        before,
        "nobody was replaced"
    );
    for index in 0..3 {
        let note = fs::read_to_string(note(&test_cluster, index)).expect("it is there");
        assert!(note.contains("\"is_verified\":true"), "{note}");
    }
    // The one that had lacked a segment remains.
    for index in [before[0].0, before[2].0] {
        test_cluster.stop(index);
        all_is_read(&table);
    }
}

/// A primary whose own log lacks a segment does not fill others with it: another replica takes
/// over, all data are read, and the first one is filled again.
#[test]
fn a_primary_that_lacks_a_log_segment_is_replaced() {
    let (mut test_cluster, first_interval_ms) = test_cluster(3, Duration::from_millis(NEVER_MS));
    first_interval_ms.store(1, Ordering::Relaxed);
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    load(&table);
    test_cluster.wait_replicated(&table, 3);
    let (first, number) = members(&test_cluster, &table)[0];
    stop_all(&mut test_cluster);
    leave_out(&data(&test_cluster, first));
    (0..3).for_each(|index| forget_verification(&test_cluster, index));
    start_all(&mut test_cluster);
    wait_served(&table);
    all_is_read(&table);
    test_cluster.wait_replicated(&table, 3);
    wait(&test_cluster, &table, |it| finished(it) == [Some(true); 3]);
    assert!(
        members(&test_cluster, &table)
            .iter()
            .all(|it| it.1 != number)
    );
    all_is_read(&table);
}

/// An only replica whose log lacks a segment is verified once it is open, whatever other work there
/// is. It reports the damage, and that the verification is finished. Its note does not say that the
/// copy is verified, so the next process checks again.
#[test]
fn an_only_replica_that_lacks_a_log_segment_reports_it() {
    let (mut test_cluster, first_interval_ms) = test_cluster(1, Duration::from_millis(NEVER_MS));
    first_interval_ms.store(1, Ordering::Relaxed);
    test_cluster.ends_with_replicas_unlike("the only copy stays damaged");
    let table = test_cluster
        .table(1, false)
        .with_durability(Durability::Sync);
    load(&table);
    wait(&test_cluster, &table, |reports| {
        finished(reports) == [Some(true)]
    });
    stop_all(&mut test_cluster);
    leave_out(&data(&test_cluster, 0));
    forget_verification(&test_cluster, 0);
    start_all(&mut test_cluster);
    wait(&test_cluster, &table, |reports| {
        let fault = reports.first().and_then(|it| it.fault.as_deref());
        fault.is_some_and(|how| how.contains("the segment header is not one of this log"))
    });
    wait(&test_cluster, &table, |reports| {
        let verification = reports.first().and_then(|it| it.verification);
        verification.is_some_and(|it| it.ended_at_unix_s.is_some() && it.is_finished)
    });
    let text = fs::read_to_string(note(&test_cluster, 0)).expect("it is there");
    assert!(!text.contains("is_verified"), "{text}");
}
