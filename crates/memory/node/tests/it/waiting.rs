//! Leaves that live clients hold, or the node itself: the node never waits forever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use core::cell::Cell;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_index::load::finish_root;
use farleaf_node::NodeEndpoint;
use farleaf_node::agent;
use farleaf_node::sessions::AgentEvent;
use farleaf_pool::catalog::CatalogEntry;

use crate::audit::chunks;
use crate::catalog::{drop_table, find};
use crate::crash::{audit_tables, contents, loaded, only_records, sample};
use crate::leaves::{ends, leaves, lock, set_lock, tear};
use crate::pool::Pool;
use crate::tables::LEARNED;

/// Node's memory in which a client is stopped in the middle of a change of a leaf, and a session
/// has died with leased leaves, some of them in use.
struct Stopped {
    pool: Pool,
    entry: CatalogEntry,
    client: OwnerWord,
    leaf: RemoteAddr,
    dead: OwnerWord,
}

impl Stopped {
    /// Stops a client at the leaf that the table began with if `is_first`; otherwise at one that a
    /// search passes.
    fn at(is_first: bool) -> Self {
        let mut pool = loaded(LEARNED, if is_first { 0 } else { 40 });
        let entry = find(&pool, "records").expect("it is there");
        let dead = pool.register();
        let mut writer = pool.client(dead, &entry);
        // These puts split leaves.
        for key in 1..=20 {
            writer.put(key, key).expect("nothing fails");
        }
        drop(writer);
        pool.fence(dead);
        let client = pool.register();
        let leaf = leaves(&mut pool, &entry)[usize::from(!is_first)].addr;
        set_lock(&pool, &entry, leaf, client);
        tear(&pool, &entry, leaf);
        Self {
            pool,
            entry,
            client,
            leaf,
            dead,
        }
    }

    fn is_leased_by(&self, owner: OwnerWord) -> bool {
        chunks(&self.pool).iter().any(|chunk| chunk.owner == owner)
    }

    /// Lets the client continue.
    fn go_on(&self) {
        tear(&self.pool, &self.entry, self.leaf);
        set_lock(&self.pool, &self.entry, self.leaf, OwnerWord::FREE);
    }
}

/// Promise: a sweep skips what a stopped client keeps it from, reports it, and frees nothing of it;
/// the next sweep handles it.
#[test]
fn a_sweep_does_not_wait_for_a_stopped_client() {
    ends(|| {
        for is_first in [true, false] {
            let mut case = Stopped::at(is_first);
            let node = case.pool.register();
            let maintainer = case.pool.maintainer(case.pool.endpoint(), node);
            for _ in 0..2 {
                let report = block_on(maintainer.sweep(), || 0).expect("that is no failure");
                assert_eq!(report.given_up_count, 1, "first: {is_first}");
                assert_eq!((report.chunk_count, report.leaf_count), (0, 0));
                assert!(case.is_leased_by(node), "it is for the next sweep");
                assert_eq!(lock(&case.pool, &case.entry, case.leaf), case.client);
            }
            case.go_on();
            let report = block_on(maintainer.sweep(), || 0).expect("nothing fails");
            assert_eq!((report.given_up_count, report.chunk_count), (0, 1));
            assert!(!case.is_leased_by(node) && !case.is_leased_by(case.dead));
            case.pool.fence(node);
            case.pool.fence(case.client);
            let records = if is_first { Vec::new() } else { sample(40) };
            let all = records.into_iter().chain((1..=20).map(|key| (key, key)));
            let all = only_records(all);
            assert_eq!(contents(&mut case.pool), all);
            audit_tables(&case.pool, &all);
        }
    });
}

/// Promise: the agent stops in bounded time, even in the middle of a sweep.
#[test]
fn a_stopped_client_does_not_keep_the_node_from_stopping() {
    ends(|| {
        let mut case = Stopped::at(false);
        let node = case.pool.register();
        let (events, heard) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let endpoint = NodeEndpoint::new(&case.pool.memory, None).expect("no device");
        let layout = case.pool.layout.clone();
        let maintainer = farleaf_node::sweep::MemoryMaintainer {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint,
            layout,
            owner: node,
        };
        let agent = agent::start(maintainer, |_| None, heard, Arc::clone(&stop), None, None);
        let agent = agent.expect("a thread is left");
        events
            .send(AgentEvent::Fenced(case.dead))
            .expect("it listens");
        while !case.is_leased_by(node) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        events.send(AgentEvent::Stop).expect("it listens");
        assert!(agent.join().is_ok());
    });
}

/// Promise: the node does not wait for locks that its own failed sweep left.
#[test]
fn neighbours_that_the_node_itself_holds_are_swept() {
    for is_left_torn in [false, true] {
        ends(move || {
            let mut pool = loaded(LEARNED, 60);
            let entry = find(&pool, "records").expect("it is there");
            let all = leaves(&mut pool, &entry);
            let node = pool.register();
            for (leaf, is_torn) in [(all[2].addr, is_left_torn), (all[3].addr, true)] {
                set_lock(&pool, &entry, leaf, node);
                if is_torn {
                    tear(&pool, &entry, leaf);
                }
            }
            let maintainer = pool.maintainer(pool.endpoint(), node);
            let report = block_on(maintainer.sweep(), || 0).expect("nothing fails");
            assert_eq!((report.lock_count, report.given_up_count), (2, 0));
            pool.fence(node);
            audit_tables(&pool, &only_records(sample(60)));
        });
    }
}

/// Promise (LEAF-8): recovery does not wait for a live client that holds a lock: a leaf beside the
/// one that a stopped client holds is recovered at once.
#[test]
fn a_leaf_beside_a_stopped_clients_is_recovered() {
    ends(|| {
        let mut pool = loaded(LEARNED, 60);
        let entry = find(&pool, "records").expect("it is there");
        let all = leaves(&mut pool, &entry);
        let (dead, stopped) = (pool.register(), pool.register());
        for (leaf, owner) in [(all[2].addr, dead), (all[3].addr, stopped)] {
            set_lock(&pool, &entry, leaf, owner);
            tear(&pool, &entry, leaf);
        }
        pool.fence(dead);
        let owner = pool.register();
        let mut client = pool.client(owner, &entry);
        // The leaf begins with its first record's key, or right after the previous key.
        let key = all[2].low.div_ceil(100) * 100;
        assert_eq!(client.get(key).expect("it is recovered"), Some(key / 100));
        assert!(lock(&pool, &entry, all[2].addr).is_free());
        assert_eq!(lock(&pool, &entry, all[3].addr), stopped);
    });
}

/// Promise: the root of a dropped table is cleared before the drop gets its number, and nothing
/// restores it.
#[test]
fn c5_a_dropped_table_has_no_root() {
    let mut pool = loaded(LEARNED, 40);
    let owner = pool.register();
    let entry = find(&pool, "records").expect("it is there");
    drop_table(&pool, &pool.plain, owner, &entry).expect("it can be dropped");
    let maintainer = pool.maintainer(pool.endpoint(), owner);
    // A session that has not followed yet keeps the entry from being freed.
    let _slow = pool.register();
    block_on(maintainer.reclaim(), || 0).expect("nothing fails");
    let dropped = pool.catalog().pop().expect("it is not free yet");
    assert!(dropped.dropped_at.0 > 0, "G1");
    assert!(dropped.root.is_null() && dropped.pending_root.is_null());
    let client = pool.client(owner, &entry);
    let finished = block_on(
        finish_root(&client.access(), &entry, &Cell::default()),
        || 0,
    );
    let root = finished.expect("whoever works on it still may go on");
    assert!(root.is_null(), "it has none, and gets none");
    let dropped = pool.catalog().pop().expect("it is not free yet");
    assert!(dropped.root.is_null());
}
