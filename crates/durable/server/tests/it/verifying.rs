//! Replicas are compared with their primary, and directories of older versions are verified (RS14).

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
use crate::crew::Crew;

const PATIENCE: Duration = Duration::from_mins(1);
/// Never, as far as a test goes.
const NEVER_MS: u64 = 3_600_000;

/// Where a log segment is in the file of a copy.
struct Place {
    engine: EngineId,
    number: LogNumber,
    offset: u64,
}

/// The log segments of a copy that are closed, oldest first.
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

/// The oldest closed log segment of a copy was never written, as older versions left it.
fn leave_out(data: &Path) {
    let place = &closed_segments(data)[0];
    let zeros = vec![0; SEGMENT_SIZE_BYTES as usize];
    write(data, &zeros, place.offset);
}

/// The oldest closed log segment of a copy ends before its first record, and its own checksums are
/// right.
fn cut_without_a_trace(data: &Path) {
    let place = &closed_segments(data)[0];
    let at = place.number.start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
    let (header, sum) = RecordSum::of(RecordKind::End, b"", b"");
    let end = encode_record_header(header, sum.at(place.engine, at));
    write(data, &end, place.offset + SEGMENT_HEADER_SIZE_BYTES as u64);
}

/// The note of a server's only replica.
fn note(crew: &Crew, index: usize) -> PathBuf {
    let data = data(crew, index);
    data.parent().expect("a replica").join("REPLICA")
}

/// The note becomes what it is after the directory of an older version was adopted.
fn forget_verification(crew: &Crew, index: usize) {
    let path = note(crew, index);
    let text = fs::read_to_string(&path).expect("it is there");
    let older = text.replace(",\"is_verified\":true", "");
    assert!(older.len() < text.len(), "{text}");
    fs::write(&path, older).expect("written");
}

/// Servers whose engines flush early, with all reads of the log from the disk, and behind them one
/// that has the master alone; and how often a copy that was never verified is looked at, in ms.
fn crew(server_count: usize, scrub_interval: Duration) -> (Crew, Arc<AtomicU64>) {
    let first_interval_ms = Arc::new(AtomicU64::new(NEVER_MS));
    let shared = Arc::clone(&first_interval_ms);
    let crew = Crew::with(server_count + 1, move |index, options| {
        options.is_candidate = index == server_count;
        options.scrub_interval = scrub_interval;
        let interval_ms = shared.load(Ordering::Relaxed);
        options.first_scrub_interval = Duration::from_millis(interval_ms);
        options.engine.log_memory_size_bytes = 0;
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let master = ServerId(server_count as u64 + 1);
    admin::set_drain(&crew.coordinator, master, true).expect("embedded");
    (crew, first_interval_ms)
}

/// Stops all servers, first the one with the master: so the record stays as it is.
fn stop_all(crew: &mut Crew) {
    for index in (0..crew.servers.len()).rev() {
        crew.stop(index);
    }
}

fn start_all(crew: &mut Crew) {
    for index in 0..crew.servers.len() {
        crew.start(index);
    }
}

/// The servers that have a replica of a table's region, in the order of the replicas' numbers, and
/// these. Of copies that are as new as each other the first one goes on.
fn members(crew: &Crew, table: &PersistentTable) -> Vec<(usize, ReplicaNumber)> {
    let region = view(&crew.coordinator).regions_of(table.id())[0].clone();
    let members = region.members();
    let mut members: Vec<_> = members
        .map(|it| (it.server.0 as usize - 1, it.number))
        .collect();
    members.sort_by_key(|it| it.1);
    members
}

/// What the servers say of the replicas of a table's region: first of its primary, if it serves.
fn reports(crew: &Crew, table: &PersistentTable) -> Vec<ReplicaReport> {
    let view = view(&crew.coordinator);
    let region = view.regions_of(table.id())[0].clone();
    let replicas = region.primary.into_iter();
    let replicas = replicas.chain(region.backups.iter().map(|it| it.replica));
    let reports = replicas.filter_map(|it| view.report(region.region, it));
    reports.cloned().collect()
}

fn wait(crew: &Crew, table: &PersistentTable, is_so: impl Fn(&[ReplicaReport]) -> bool) {
    let since = Instant::now();
    loop {
        let reports = reports(crew, table);
        if is_so(&reports) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "{reports:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Which replicas report that they are verified.
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

/// Promise (RS14, RP17): a backup whose log lacks records is found by comparing it with its
/// primary's, although its own checksums are right; the primary reports it, and the backup is
/// filled again: it has everything when it is primary.
#[test]
fn a_backup_that_differs_is_found_and_filled_again() {
    let (mut crew, _) = crew(2, Duration::from_millis(20));
    let table = crew.table(2, false).with_durability(Durability::Sync);
    load(&table);
    crew.wait_whole(&table, 2);
    wait(&crew, &table, |reports| {
        let verifications: Vec<_> = reports.iter().filter_map(|it| it.verification).collect();
        let is_passed = verifications.iter().all(|it| it.ended_at_unix_s.is_some());
        verifications.len() == 2 && is_passed
    });
    let primary = crew.primary(&table);
    let backup = 1 - primary;
    let before = view(&crew.coordinator).regions_of(table.id())[0].backups[0].replica;
    cut_without_a_trace(&data(&crew, backup));
    wait(&crew, &table, |reports| {
        let primary = reports.first().and_then(|it| it.primary.as_ref());
        let mismatch = primary.and_then(|it| it.mismatches.first());
        mismatch.is_some_and(|it| it.replica == before.number && it.part.starts_with("log segment"))
    });
    farleaf_trial::fleet::wait_regions(&crew.coordinator, &table, |_, region| {
        region.replicas().all(|it| it != before)
    });
    crew.wait_whole(&table, 2);
    wait(&crew, &table, |reports| {
        let primary = reports.first().and_then(|it| it.primary.as_ref());
        primary.is_some_and(|it| it.mismatches.is_empty() && it.mismatch_count == 1)
    });
    all_is_read(&table);
    crew.stop(primary);
    all_is_read(&table);
}

/// Promise (RS14): backups of directories that older versions have written are verified when their
/// primary fills them, with log segments that they lack; the primary is when it has read all that
/// it has, and until then it reports that it is not. What was verified stays so.
#[test]
fn directories_of_older_versions_are_verified() {
    let (mut crew, first_interval_ms) = crew(3, Duration::from_millis(NEVER_MS));
    let table = crew.table(3, false).with_durability(Durability::Sync);
    load(&table);
    crew.wait_whole(&table, 3);
    wait(&crew, &table, |it| finished(it) == [Some(true); 3]);
    let before = members(&crew, &table);
    stop_all(&mut crew);
    leave_out(&data(&crew, before[1].0));
    (0..3).for_each(|index| forget_verification(&crew, index));
    start_all(&mut crew);
    wait_served(&table);
    crew.wait_whole(&table, 3);
    wait(&crew, &table, |reports| {
        finished(reports) == [Some(false), Some(true), Some(true)]
    });
    all_is_read(&table);
    first_interval_ms.store(1, Ordering::Relaxed);
    stop_all(&mut crew);
    start_all(&mut crew);
    wait_served(&table);
    crew.wait_whole(&table, 3);
    wait(&crew, &table, |it| finished(it) == [Some(true); 3]);
    assert_eq!(members(&crew, &table), before, "nobody was replaced");
    for index in 0..3 {
        let note = fs::read_to_string(note(&crew, index)).expect("it is there");
        assert!(note.contains("\"is_verified\":true"), "{note}");
    }
    // The one that had lacked a segment is left.
    for index in [before[0].0, before[2].0] {
        crew.stop(index);
        all_is_read(&table);
    }
}

/// Promise (RS8, RS14): a primary whose own log lacks a segment fills nobody with that: another
/// replica takes over, all is read, and the first one is filled again.
#[test]
fn a_primary_that_lacks_a_log_segment_is_replaced() {
    let (mut crew, first_interval_ms) = crew(3, Duration::from_millis(NEVER_MS));
    first_interval_ms.store(1, Ordering::Relaxed);
    let table = crew.table(3, false).with_durability(Durability::Sync);
    load(&table);
    crew.wait_whole(&table, 3);
    let (first, number) = members(&crew, &table)[0];
    stop_all(&mut crew);
    leave_out(&data(&crew, first));
    (0..3).for_each(|index| forget_verification(&crew, index));
    start_all(&mut crew);
    wait_served(&table);
    all_is_read(&table);
    crew.wait_whole(&table, 3);
    wait(&crew, &table, |it| finished(it) == [Some(true); 3]);
    assert!(members(&crew, &table).iter().all(|it| it.1 != number));
    all_is_read(&table);
}

/// Promise (RS8, RS14): an only replica whose log lacks a segment is verified when it is open,
/// whatever else is to be done. It reports the damage, and that the verification is finished; its
/// note does not say that the copy is verified, so the next process looks again.
#[test]
fn an_only_replica_that_lacks_a_log_segment_reports_it() {
    let (mut crew, first_interval_ms) = crew(1, Duration::from_millis(NEVER_MS));
    first_interval_ms.store(1, Ordering::Relaxed);
    crew.ends_with_replicas_unlike("the only copy stays damaged");
    let table = crew.table(1, false).with_durability(Durability::Sync);
    load(&table);
    wait(&crew, &table, |reports| finished(reports) == [Some(true)]);
    stop_all(&mut crew);
    leave_out(&data(&crew, 0));
    forget_verification(&crew, 0);
    start_all(&mut crew);
    wait(&crew, &table, |reports| {
        let fault = reports.first().and_then(|it| it.fault.as_deref());
        fault.is_some_and(|how| how.contains("the segment does not begin as one of this log"))
    });
    wait(&crew, &table, |reports| {
        let verification = reports.first().and_then(|it| it.verification);
        verification.is_some_and(|it| it.ended_at_unix_s.is_some() && it.is_finished)
    });
    let text = fs::read_to_string(note(&crew, 0)).expect("it is there");
    assert!(!text.contains("is_verified"), "{text}");
}
