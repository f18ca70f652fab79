//! Logs whose numbers have gaps.

use super::*;

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
