//! What the node does about leaves that living clients hold, or that it holds itself: it never
//! waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use core::cell::Cell;

use farleaf_executor::block_on;
use farleaf_index::load::finish_root;
use farleaf_node::NodeEndpoint;
use farleaf_node::agent;
use farleaf_node::sessions::AgentEvent;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::audit::chunks;
use crate::catalog::{drop_table, find};
use crate::crash::{audit_tables, contents, loaded, only_records, sample};
use crate::leaves::{ends, leaves, lock, set_lock, tear};
use crate::pool::Pool;
use crate::tables::LEARNED;

/// A region in which a client is stopped in the middle of a change of a leaf, and a session has
/// died with leased leaves, some of them in use.
struct Stopped {
    pool: Pool,
    entry: CatalogEntry,
    client: OwnerWord,
    leaf: RemoteAddr,
    dead: OwnerWord,
}

impl Stopped {
    /// `is_first`: at the leaf that the table began with; else at the one that a search goes by.
    fn at(is_first: bool) -> Self {
        let mut pool = loaded(LEARNED, if is_first { 0 } else { 40 });
        let entry = find(&pool, "records").expect("it is there");
        let dead = pool.register();
        let mut writer = pool.client(dead, &entry);
        // Splits leaves.
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

    /// The client goes on.
    fn go_on(&self) {
        tear(&self.pool, &self.entry, self.leaf);
        set_lock(&self.pool, &self.entry, self.leaf, OwnerWord::FREE);
    }
}

/// W6: a sweep gives up what a stopped client keeps it from, says so, and frees nothing of it; the
/// next one sweeps it.
#[test]
fn a_sweep_does_not_wait_for_a_stopped_client() {
    ends(|| {
        for is_first in [true, false] {
            let mut case = Stopped::at(is_first);
            let node = case.pool.register();
            let keeper = case.pool.keeper(case.pool.endpoint(), node);
            for _ in 0..2 {
                let report = block_on(keeper.sweep(), || 0).expect("that is no failure");
                assert_eq!(report.given_up_count, 1, "first: {is_first}");
                assert_eq!((report.chunk_count, report.leaf_count), (0, 0));
                assert!(case.is_leased_by(node), "it is for the next sweep");
                assert_eq!(lock(&case.pool, &case.entry, case.leaf), case.client);
            }
            case.go_on();
            let report = block_on(keeper.sweep(), || 0).expect("nothing fails");
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

/// The agent stops in bounded time, in the middle of a sweep, too.
#[test]
fn a_stopped_client_does_not_keep_the_node_from_stopping() {
    ends(|| {
        let mut case = Stopped::at(false);
        let node = case.pool.register();
        let (events, heard) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let endpoint = NodeEndpoint::new(&case.pool.region, None).expect("no device");
        let layout = case.pool.layout.clone();
        let keeper = farleaf_node::sweep::Keeper {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint,
            layout,
            owner: node,
        };
        let agent = agent::start(keeper, |_| None, heard, Arc::clone(&stop), (None, None));
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

/// W5: what the node's own failed sweep left locked does not wait for the node itself.
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
            let keeper = pool.keeper(pool.endpoint(), node);
            let report = block_on(keeper.sweep(), || 0).expect("nothing fails");
            assert_eq!((report.lock_count, report.given_up_count), (2, 0));
            pool.fence(node);
            audit_tables(&pool, &only_records(sample(60)));
        });
    }
}

/// D8: recovery does not wait for a living client with a lock in hand: a leaf beside one that a
/// stopped client holds is recovered at once.
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
        // The leaf begins with its first record's key, or right behind the one before that.
        let key = all[2].low.div_ceil(100) * 100;
        assert_eq!(client.get(key).expect("it is recovered"), Some(key / 100));
        assert!(lock(&pool, &entry, all[2].addr).is_free());
        assert_eq!(lock(&pool, &entry, all[3].addr), stopped);
    });
}

/// C5: the root of a dropped table is gone before the drop is numbered, and nobody brings it back.
#[test]
fn c5_a_dropped_table_has_no_root() {
    let mut pool = loaded(LEARNED, 40);
    let owner = pool.register();
    let entry = find(&pool, "records").expect("it is there");
    drop_table(&pool, &pool.plain, owner, &entry).expect("it can be dropped");
    let keeper = pool.keeper(pool.endpoint(), owner);
    // A session that has followed to nothing yet keeps the entry from being freed.
    let _slow = pool.register();
    block_on(keeper.reclaim(), || 0).expect("nothing fails");
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
