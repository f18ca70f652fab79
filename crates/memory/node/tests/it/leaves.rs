//! Helpers for single leaves of a table: finding them, and corrupting them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::operation::LeafReport;
use farleaf_leaf::words::LeafBuffer;
use farleaf_pool::catalog::CatalogEntry;

use crate::pool::{Pool, access};

/// Time limit: long enough for any working host, short enough to wait for in a failing test.
const PATIENCE: Duration = Duration::from_mins(1);

/// Runs a test that would not end if its promise were violated.
pub(crate) fn ends(test: impl FnOnce() + Send + 'static) {
    let (sender, done) = channel();
    let thread = std::thread::spawn(move || {
        test();
        sender.send(())
    });
    let ended = done.recv_timeout(PATIENCE);
    assert_ne!(ended, Err(RecvTimeoutError::Timeout), "it does not end");
    assert!(thread.join().is_ok(), "it failed");
}

/// Returns all leaves of a table, in order.
pub(crate) fn leaves(pool: &mut Pool, entry: &CatalogEntry) -> Vec<LeafReport> {
    let owner = pool.register();
    let mut leaves = Vec::new();
    {
        let client = pool.client(owner, entry);
        let (index, mut batch) = (client.index(), Batch::new());
        let mut survey = index.survey();
        while let Some(leaf) =
            block_on(index.survey_next(&mut batch, &mut survey), || 0).expect("all are good")
        {
            leaves.push(leaf);
        }
    }
    pool.fence(owner);
    leaves
}

fn execute(pool: &Pool, batch: &mut Batch) {
    block_on(pool.plain.execute(batch), || 0).expect("nothing fails");
}

/// Overwrites a leaf by an intact, empty one with these fences and this link.
pub(crate) fn overwrite(
    pool: &Pool,
    entry: &CatalogEntry,
    addr: RemoteAddr,
    low: u64,
    high: u64,
    link: RemoteAddr,
) {
    let access = access(&pool.plain, &pool.layout, OwnerWord::FREE, entry);
    let mut leaf = LeafBuffer::new(access.geometry, low, high, link);
    let mut batch = Batch::new();
    access.change(addr).write_new(&mut batch, &mut leaf);
    execute(pool, &mut batch);
}

/// Writes a leaf's lock word.
pub(crate) fn set_lock(pool: &Pool, entry: &CatalogEntry, addr: RemoteAddr, owner: OwnerWord) {
    let access = access(&pool.plain, &pool.layout, owner, entry);
    let mut batch = Batch::new();
    batch.write_word(access.geometry.lock(addr), owner.word());
    execute(pool, &mut batch);
}

/// Returns the holder of a leaf's lock.
pub(crate) fn lock(pool: &Pool, entry: &CatalogEntry, addr: RemoteAddr) -> OwnerWord {
    let access = access(&pool.plain, &pool.layout, OwnerWord::FREE, entry);
    OwnerWord::from_word(pool.word(access.geometry.lock(addr)))
}

/// Changes a leaf's version without its checksum; a second call restores it.
pub(crate) fn tear(pool: &Pool, entry: &CatalogEntry, addr: RemoteAddr) {
    let access = access(&pool.plain, &pool.layout, OwnerWord::FREE, entry);
    let state = access.geometry.state(addr);
    let mut batch = Batch::new();
    batch.write_word(state, pool.word(state) ^ 1 << 60);
    execute(pool, &mut batch);
}
