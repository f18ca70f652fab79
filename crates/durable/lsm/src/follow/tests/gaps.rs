//! Logs whose numbers have gaps, and logs that lost their end.

use super::*;
use crate::storage::PowerLoss;

/// A bug that was found: a directory that was opened again has reserved numbers of log segments
/// that nobody gets. Promise: one that is filled from it, and to which nothing comes then, is
/// promoted with all that there is, before and after it is opened again.
#[test]
fn nothing_comes_behind_reserved_segments() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (from, to) = (CrashStorage::new(3), CrashStorage::new(4));
        let first = Pair::new(&from);
        first
            .engine
            .put(b"17", b"value", Durability::Sync)
            .expect("put");
        drop(first);
        let mut pair = Pair::new(&from);
        pair.fill(&to, index).expect("filled");
        let mut follower = pair.follower.take().expect("it was filled");
        if index == IndexKind::Sent {
            // Its process ends and begins again.
            drop(follower);
            follower = Follower::open(Arc::new(to.clone())).expect("it was whole");
        }
        let promoted = follower.promote(options()).expect("all is there");
        assert_eq!(all(&promoted), all(&pair.engine));
        drop(promoted);
        let again = Engine::open(Arc::new(to.clone()), options()).expect("it is an engine's");
        assert_eq!(again.get(b"17").expect("got"), Some(b"value".to_vec()));
    }
}

/// Promise: the same without the process's end, which knows up to where the log was written.
#[test]
fn a_follower_is_promoted_with_nothing_behind_its_base() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (from, to) = (CrashStorage::new(5), CrashStorage::new(6));
        drop(Pair::new(&from).engine.put(b"17", b"v", Durability::Sync));
        let mut pair = Pair::new(&from);
        pair.fill(&to, index).expect("filled");
        let follower = pair.follower.take().expect("it was filled");
        let promoted = follower.promote(options()).expect("all is there");
        assert_eq!(all(&promoted), all(&pair.engine));
    }
}

/// A bug that was found: of a copy whose log had lost what was synced there nobody could tell that.
/// Promise (VL6, FO6): one that was cut before what a first sync made durable is not promoted, and
/// is when the file is put back.
#[test]
fn a_follower_that_lost_its_log_is_not_promoted() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (from, to) = (CrashStorage::new(7), CrashStorage::new(8));
        let mut pair = Pair::new(&from);
        pair.fill(&to, index).expect("filled");
        let put = pair.engine.put(b"17", b"value", Durability::Memory);
        put.expect("put");
        pair.follow_log().expect("written");
        let mut follower = pair.follower.take().expect("it was filled");
        follower.sync_log().expect("synced");
        drop(follower);
        let left = to.lose_power(PowerLoss::Everything);
        let log = left.open("log").expect("there");
        let mut bytes = vec![0; log.size().expect("known") as usize];
        log.read_at(&mut bytes, 0).expect("read");
        log.set_size(0).expect("cut");
        let open = || Follower::open(Arc::new(left.clone())).expect("its manifest is whole");
        let failed = open().promote(options()).expect_err("its log is not");
        assert!(matches!(failed, LsmError::DamagedLog { .. }), "{failed}");
        log.write_at(&bytes, 0).expect("put back");
        let follower = open();
        let promoted = follower.promote(options()).expect("all is there");
        assert_eq!(all(&promoted), all(&pair.engine));
    }
}

/// Promise (VL6): a sync of a follower says nothing of a record larger than a segment that has not
/// come to its end: one that never does is no damage.
#[test]
fn half_a_record_is_not_said_to_be_there() {
    let (from, to) = (CrashStorage::new(9), CrashStorage::new(10));
    let mut pair = Pair::new(&from);
    pair.fill(&to, IndexKind::Sent).expect("filled");
    let value = vec![7; 5 << 20];
    pair.engine
        .put(b"17", &value, Durability::Memory)
        .expect("put");
    let mut follower = pair.follower.take().expect("it was filled");
    let mut buffer = Vec::new();
    for _ in 0..2 {
        let at = follower.written_to();
        let next = pair.engine.log().read_raw(at, &mut buffer).expect("read");
        assert!(next.number() > at.number(), "it goes on in the next one");
        follower.write_log(at, &buffer, true).expect("written");
        follower.sync_log().expect("synced");
    }
    drop(follower);
    let follower = Follower::open(Arc::new(to)).expect("its manifest is whole");
    let promoted = follower.promote(options()).expect("nothing is lost");
    assert_eq!(all(&promoted), Model::new());
}

/// Its log is cut to nothing, and then it is not promoted.
fn assert_missed(to: &CrashStorage) {
    let cut = to.lose_power(PowerLoss::Everything);
    cut.open("log").expect("there").set_size(0).expect("cut");
    let follower = Follower::open(Arc::new(cut)).expect("its manifest is whole");
    let failed = follower.promote(options()).expect_err("its log is not");
    assert!(matches!(failed, LsmError::DamagedLog { .. }), "{failed}");
}

/// Promise (VL6, FO6): what was whole when a follower was synced is missed when it is lost, also
/// where half of a record larger than a segment had come behind it.
#[test]
fn what_is_before_half_a_record_is_said() {
    let (from, to) = (CrashStorage::new(9), CrashStorage::new(10));
    let mut pair = Pair::new(&from);
    pair.fill(&to, IndexKind::Sent).expect("filled");
    let sizes: [(&[u8], _); 2] = [(b"1", 5), (b"17", 5 << 20)];
    for (key, size_bytes) in sizes {
        let put = pair
            .engine
            .put(key, &vec![7; size_bytes], Durability::Memory);
        put.expect("put");
    }
    let mut follower = pair.follower.take().expect("it was filled");
    let mut buffer = Vec::new();
    for _ in 0..2 {
        let at = follower.written_to();
        pair.engine.log().read_raw(at, &mut buffer).expect("read");
        follower.write_log(at, &buffer, true).expect("written");
    }
    follower.sync_log().expect("synced");
    drop(follower);
    assert_missed(&to);
}

/// Promise (VL6, FO5): what a follower was filled with is missed when it is lost, also when nothing
/// has come since.
#[test]
fn what_it_was_filled_with_is_missed() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let to = CrashStorage::new(10);
        let mut pair = Pair::new(&CrashStorage::new(9));
        let put = pair.engine.put(b"17", b"value", Durability::Sync);
        put.expect("put");
        pair.fill(&to, index).expect("filled");
        drop(pair.follower.take());
        assert_missed(&to);
    }
}
