//! All servers of a region are down at once, and one of their copies is damaged meanwhile.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::RegionRecord;
use farleaf_trial::fleet::view;
use farleaf_trial::load::wait_served;

use crate::crew::Crew;

const RECORD_COUNT: u64 = 700;

/// The server that has the master, and no replica.
const MASTER: usize = 3;

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// 4 KiB that are another record's nowhere.
fn value_of(number: u64) -> Vec<u8> {
    format!("[value {number:06}]").into_bytes().repeat(256)
}

/// Three servers with a replica each, and one that has the master alone: when that is stopped
/// first, the others are lost together, as the record sees it.
fn crew() -> (Crew, PersistentTable) {
    let crew = Crew::with(4, |index, options| {
        options.is_candidate = index == MASTER;
        options.scrub_interval = Duration::from_hours(1);
        options.engine.l0_entry_count_max = 256;
    });
    let master = ServerId(MASTER as u64 + 1);
    admin::set_drain(&crew.coordinator, master, true).expect("embedded");
    let table = crew.table(3, false).with_durability(Durability::Sync);
    let records = (0..RECORD_COUNT).map(|number| (key_of(number), value_of(number)));
    let records: Vec<_> = records.collect();
    for part in records.chunks(100) {
        table.multi_put(part).expect("put");
    }
    (crew, table)
}

fn region(crew: &Crew, table: &PersistentTable) -> RegionRecord {
    view(&crew.coordinator).regions_of(table.id())[0].clone()
}

/// The one replica's directory that a server has, and its copy in force.
fn place(crew: &Crew, server: ServerId) -> (PathBuf, PathBuf) {
    let regions = crew.directory(server.0 as usize - 1).join("regions");
    let only = |path: &Path, prefix: &str| {
        let entries = fs::read_dir(path).expect("it is there");
        let mut paths = entries.map(|entry| entry.expect("listed").path());
        let found = paths.find(|path| {
            let name = path.file_name().and_then(|it| it.to_str());
            name.is_some_and(|name| name.starts_with(prefix))
        });
        found.expect("one is there")
    };
    let replica = only(&regions, "");
    let data = only(&replica, "data-");
    (replica, data)
}

/// All are lost; some copies are damaged, by the order of their numbers: of those that are as new
/// as each other the first goes on. All are started again: all that was acknowledged is there, and
/// the first replica, if its copy alone was damaged, is none any more.
fn are_served_by_others(damaged: &[usize], damage: impl Fn(&Path, &Path)) {
    let (mut crew, table) = crew();
    let before = region(&crew, &table);
    let mut members: Vec<_> = before.members().collect();
    assert_eq!(members.len(), 3, "{before:?}");
    members.sort_by_key(|it| it.number);
    for index in [MASTER, 0, 1, 2] {
        crew.stop(index);
    }
    assert_eq!(
        region(&crew, &table),
        before,
        "nobody is there to change it"
    );
    for index in damaged {
        let (replica, data) = place(&crew, members[*index].server);
        damage(&replica, &data);
    }
    for index in [0, 1, 2, MASTER] {
        crew.start(index);
    }
    wait_served(&table);
    crew.wait_whole(&table, 3);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)), "{number}");
    }
    let after = region(&crew, &table);
    if damaged == [0] {
        let first = members[0].number;
        assert!(after.replicas().all(|it| it.number != first), "{after:?}");
    }
}

/// The copy of the one that would go on is damaged.
fn is_served_by_another(damage: impl Fn(&Path, &Path)) {
    are_served_by_others(&[0], damage);
}

/// Cuts a log off in the middle of what was not flushed.
fn cut_log(_: &Path, data: &Path) {
    let log = fs::read(data.join("log")).expect("it is there");
    let value = value_of(RECORD_COUNT - 50);
    let mut windows = log.windows(64);
    let at = windows.position(|window| window == &value[..64]);
    let at = at.expect("it was written") as u64;
    let file = fs::OpenOptions::new().write(true).open(data.join("log"));
    file.expect("it is there").set_len(at).expect("cut");
}

/// Promise (CP18, RS8): a bit of the newest copy's log has flipped while all were down: it fills
/// nobody, and another copy goes on.
#[test]
fn a_bit_has_flipped_while_all_were_down() {
    is_served_by_another(|_, data| {
        let log = fs::read(data.join("log")).expect("it is there");
        let value = value_of(RECORD_COUNT / 2);
        let mut windows = log.windows(64);
        let at = windows.position(|window| window == &value[..64]);
        let at = at.expect("it was written") + 100;
        let file = fs::OpenOptions::new().write(true).open(data.join("log"));
        let file = file.expect("it is there");
        file.write_all_at(&[log[at] ^ 1], at as u64)
            .expect("written");
    });
}

/// Promise (CP18): a log that ends before it should, and is whole up to there, is no copy that goes
/// on: others have more.
#[test]
fn a_log_is_cut_while_all_were_down() {
    is_served_by_another(cut_log);
}

/// Promise (CP18): where two of three logs were cut, the whole one goes on, whichever that is: also
/// behind a backup that was filled from a cut one before.
#[test]
fn two_logs_are_cut_while_all_were_down() {
    for damaged in [[0, 1], [0, 2], [1, 2]] {
        are_served_by_others(&damaged, cut_log);
    }
}

/// Promise (CP18): the newest copy cannot be opened, as a file of it is not there; another goes on.
#[test]
fn a_log_is_gone_while_all_were_down() {
    is_served_by_another(|_, data| fs::remove_file(data.join("log")).expect("it was there"));
}

/// Promise (CP18): a copy whose manifest is damaged is told, and not waited for.
#[test]
fn a_manifest_is_torn_while_all_were_down() {
    is_served_by_another(|_, data| {
        fs::write(data.join("CURRENT"), "nonsense").expect("written");
    });
}

/// What is not as it was written in a way that its length or kind shows.
fn lengthen(path: &Path) {
    let mut bytes = fs::read(path).expect("it is there");
    bytes.extend([b'x'; 100]);
    fs::write(path, bytes).expect("written");
}

fn make_directory_of(path: &Path) {
    fs::remove_file(path).expect("it was there");
    fs::create_dir(path).expect("made");
}

/// Promise (CP18): a file of wrong length, or a directory in its place, is damage, and no error of
/// the disk that may pass: nobody waits for that copy. Once all waited for a copy whose `CURRENT`
/// was too long.
#[test]
fn files_have_wrong_lengths_while_all_were_down() {
    is_served_by_another(|_, data| lengthen(&data.join("CURRENT")));
    is_served_by_another(|_, data| make_directory_of(&data.join("log")));
    is_served_by_another(|replica, _| fs::write(replica.join("REPLICA"), "").expect("written"));
}

/// Promise (CP18): a replica whose note is damaged is told, and not waited for.
#[test]
fn a_note_is_torn_while_all_were_down() {
    is_served_by_another(|replica, _| {
        fs::write(replica.join("REPLICA"), "{\"version\":1,").expect("written");
    });
}

/// Promise (CP18): a copy that a newer program has written is waited for, as that program may come:
/// it is none that is damaged. Given up, the others go on.
#[test]
fn a_copy_of_a_newer_program_is_waited_for() {
    let (mut crew, table) = crew();
    let before = region(&crew, &table);
    for index in [MASTER, 0, 1, 2] {
        crew.stop(index);
    }
    let first = before.primary.expect("it is served");
    let (replica, _) = place(&crew, first.server);
    let note = fs::read_to_string(replica.join("REPLICA")).expect("it is there");
    let newer = note.replace("\"version\":2", "\"version\":9");
    fs::write(replica.join("REPLICA"), newer).expect("written");
    for index in [0, 1, 2, MASTER] {
        crew.start(index);
    }
    let since = std::time::Instant::now();
    let told = loop {
        let view = view(&crew.coordinator);
        let plan =
            farleaf_cluster::plan::plan(&view, &farleaf_cluster::plan::PlanOptions::default());
        let told = plan.waiting.iter().map(|it| it.what.clone());
        let told = told.collect::<Vec<_>>().join("; ");
        if told.contains("version 9") {
            break told;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{told}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(told.contains(&first.server.to_string()), "{told}");
    fs::write(replica.join("REPLICA"), note).expect("written");
    let index = first.server.0 as usize - 1;
    crew.stop(index);
    crew.start(index);
    wait_served(&table);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)), "{number}");
    }
}

/// Promise (RS6): a primary that is closed has let go of its directory, also if it was looking for
/// a server that is not there: the same process can open it at once.
#[test]
fn who_stops_behind_its_peer_can_be_opened_again() {
    let mut crew = Crew::new(2);
    let table = crew.table(2, false).with_durability(Durability::Sync);
    for round in 0..4_u32 {
        let value = round.to_le_bytes();
        table.put(b"key", &value).expect("put");
        crew.wait_whole(&table, 2);
        let first = crew.primary(&table);
        for index in [first, 1 - first] {
            crew.stop(index);
        }
        for index in [0, 1] {
            crew.start(index);
        }
        wait_served(&table);
        let found = table.get(b"key").expect("it is served");
        assert_eq!(found, Some(value.to_vec()));
    }
}
