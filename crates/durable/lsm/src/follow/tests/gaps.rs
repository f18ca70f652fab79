//! Logs with gaps in their segment numbers, and logs that lost their end.

use super::*;
use crate::storage::PowerLoss;

/// Regression: a reopened directory has reserved numbers of log segments that are never used.
/// Promise: a follower that was filled from it, and received nothing since, is promoted with all
/// data, before and after it is reopened.
#[test]
fn nothing_comes_behind_reserved_segments() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (from, to) = (CrashStorage::new(3), CrashStorage::new(4));
        let first = FollowedEngine::new(&from);
        first
            .engine
            .put(b"17", b"value", Durability::Sync)
            .expect("put");
        drop(first);
        let mut pair = FollowedEngine::new(&from);
        pair.fill(&to, index).expect("filled");
        let mut follower = pair.follower.take().expect("it was filled");
        if index == IndexKind::Sent {
            // The process ends, and a new one starts.
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

/// Promise: the same holds in the same process, which knows the written end of the log.
#[test]
fn a_follower_is_promoted_with_nothing_behind_its_base() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (from, to) = (CrashStorage::new(5), CrashStorage::new(6));
        drop(
            FollowedEngine::new(&from)
                .engine
                .put(b"17", b"v", Durability::Sync),
        );
        let mut pair = FollowedEngine::new(&from);
        pair.fill(&to, index).expect("filled");
        let follower = pair.follower.take().expect("it was filled");
        let promoted = follower.promote(options()).expect("all is there");
        assert_eq!(all(&promoted), all(&pair.engine));
    }
}

/// Regression: a copy whose log had lost synced data was not recognized. Promise: a follower whose
/// log was truncated before the end of a first sync is not promoted. With the file restored, it is.
#[test]
fn a_follower_that_lost_its_log_is_not_promoted() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (from, to) = (CrashStorage::new(7), CrashStorage::new(8));
        let mut pair = FollowedEngine::new(&from);
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
        assert!(matches!(failed, LsmError::CorruptLog { .. }), "{failed}");
        log.write_at(&bytes, 0).expect("put back");
        let follower = open();
        let promoted = follower.promote(options()).expect("all is there");
        assert_eq!(all(&promoted), all(&pair.engine));
    }
}

/// Promise: a follower's sync does not record a large record whose end has not arrived. If it never
/// arrives, that is not corruption.
#[test]
fn half_a_record_is_not_said_to_be_there() {
    let (from, to) = (CrashStorage::new(9), CrashStorage::new(10));
    let mut pair = FollowedEngine::new(&from);
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

/// Asserts that the follower is not promoted if its log is truncated to nothing.
fn assert_missed(to: &CrashStorage) {
    let cut = to.lose_power(PowerLoss::Everything);
    cut.open("log").expect("there").set_size(0).expect("cut");
    let follower = Follower::open(Arc::new(cut)).expect("its manifest is whole");
    let failed = follower.promote(options()).expect_err("its log is not");
    assert!(matches!(failed, LsmError::CorruptLog { .. }), "{failed}");
}

/// Promise: losing records that were complete at a sync of the follower is detected, even if half
/// of a large record had arrived behind them.
#[test]
fn what_is_before_half_a_record_is_said() {
    let (from, to) = (CrashStorage::new(9), CrashStorage::new(10));
    let mut pair = FollowedEngine::new(&from);
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

/// Promise: losing data of the base is detected, even if nothing has arrived since.
#[test]
fn what_it_was_filled_with_is_missed() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let to = CrashStorage::new(10);
        let mut pair = FollowedEngine::new(&CrashStorage::new(9));
        let put = pair.engine.put(b"17", b"value", Durability::Sync);
        put.expect("put");
        pair.fill(&to, index).expect("filled");
        drop(pair.follower.take());
        assert_missed(&to);
    }
}
