//! Reads that end where they begin, on pools whose memory this processor reaches by itself.
//!
//! A blocking get needs no future then: it is made only for what is left to do.

use farleaf_fabric::OperationKind;
use farleaf_index::operation::{Elsewhere, GetAtOnce, MultiGetAtOnce};

use crate::begin::Begun;
use crate::host::Host;
use crate::{AsyncTable, Error};

/// What is left of a read.
pub(crate) enum Rest<'a, W> {
    /// All of it: nothing has begun.
    All,
    /// It has begun, and goes on from here.
    Elsewhere(Begun<'a>, W),
}

/// A get after its first leaf.
pub(crate) enum GetBegun<'a> {
    Done(Option<u64>),
    Unfinished(Rest<'a, Elsewhere>),
}

/// A `multi_get` after a leaf per key.
pub(crate) enum MultiGetBegun<'a> {
    Done,
    Unfinished(Rest<'a, Vec<Elsewhere>>),
}

impl<H: Host> AsyncTable<H> {
    #[inline]
    pub(crate) fn get_at_once(&self, key: u64) -> GetBegun<'_> {
        let Some(begun) = self.session.begin_briefly(&self.state) else {
            return GetBegun::Unfinished(Rest::All);
        };
        let index = self.index();
        match index.get_at_once(key) {
            GetAtOnce::Value(value) => {
                let cost = index.cost_at_once(1);
                self.session.record(OperationKind::Get, cost);
                GetBegun::Done(value)
            }
            GetAtOnce::Elsewhere(elsewhere) => {
                GetBegun::Unfinished(Rest::Elsewhere(begun.keep(), elsewhere))
            }
            GetAtOnce::Unable => GetBegun::Unfinished(Rest::All),
        }
    }

    #[cold]
    pub(crate) async fn get_rest(
        &self,
        key: u64,
        rest: Rest<'_, Elsewhere>,
    ) -> Result<Option<u64>, Error> {
        if self.is_remote() {
            return self.get_remote(key).await;
        }
        if self.has_node_writes() {
            return self.get_by_models(key, rest).await;
        }
        if let Rest::Elsewhere(begun, elsewhere) = rest {
            let mut operation = self.operation(begun);
            let batch = &mut operation.batch;
            let value = operation.index.get_elsewhere(batch, key, elsewhere).await;
            match operation.finish(OperationKind::Get, value) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
        loop {
            let mut operation = self.begin().await?;
            let value = operation.index.get(&mut operation.batch, key).await;
            match operation.finish(OperationKind::Get, value) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
    }

    #[inline]
    pub(crate) fn multi_get_at_once(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> MultiGetBegun<'_> {
        let Some(begun) = self.session.begin_briefly(&self.state) else {
            return MultiGetBegun::Unfinished(Rest::All);
        };
        let index = self.index();
        match index.multi_get_at_once(keys, values) {
            MultiGetAtOnce::Read(elsewhere) if elsewhere.is_empty() => {
                let cost = index.cost_at_once(keys.len());
                self.session.record(OperationKind::MultiGet, cost);
                MultiGetBegun::Done
            }
            MultiGetAtOnce::Read(elsewhere) => {
                MultiGetBegun::Unfinished(Rest::Elsewhere(begun.keep(), elsewhere))
            }
            MultiGetAtOnce::Unable => MultiGetBegun::Unfinished(Rest::All),
        }
    }

    #[cold]
    pub(crate) async fn multi_get_rest(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
        rest: Rest<'_, Vec<Elsewhere>>,
    ) -> Result<(), Error> {
        if self.is_remote() {
            return self.multi_get_remote(keys, values).await;
        }
        if self.has_node_writes() {
            return self.multi_get_by_models(keys, values).await;
        }
        if let Rest::Elsewhere(begun, elsewhere) = rest {
            let mut operation = self.operation(begun);
            let batch = &mut operation.batch;
            let index = operation.index;
            let done = index.multi_get_elsewhere(batch, keys, values, &elsewhere);
            let done = done.await;
            match operation.finish(OperationKind::MultiGet, done) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
        loop {
            let mut operation = self.begin().await?;
            let index = operation.index;
            let done = index.multi_get(&mut operation.batch, keys, values).await;
            match operation.finish(OperationKind::MultiGet, done) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use farleaf_fabric::{Batch, Endpoint};
    use farleaf_types::SequenceNumber;

    use super::*;
    use crate::{EmbeddedFabric, Pool, PoolOptions, Session, Table, TableOptions};

    const LOADED_COUNT: u64 = 2000;
    const KEY_DISTANCE: u64 = 1000;

    fn pools() -> [Pool; 2] {
        [EmbeddedFabric::Mem, EmbeddedFabric::Shm { name: None }].map(|fabric| {
            let size_bytes = 32 << 20;
            Pool::embedded(&PoolOptions {
                fabric,
                size_bytes,
                // What splits make stays as it is.
                retrain_thread_count: 0,
                ..PoolOptions::default()
            })
            .expect("a pool")
        })
    }

    /// A session that has the table open since before somebody else split every leaf of it: its
    /// hints are as they were loaded.
    fn stale(pool: &Pool, name: &str) -> (Session, Table) {
        let session = pool.session().expect("a session");
        let table = session.open_table(name).expect("a table");
        (session, table)
    }

    /// Makes a table, loads it, and splits its leaves after `open` has opened it as often as it
    /// likes.
    fn split_after<R>(pool: &Pool, options: &TableOptions, open: impl FnOnce() -> R) -> R {
        let writer = pool.session().expect("a session");
        let table = writer.create_table("t", options).expect("a table");
        let records = (0..LOADED_COUNT).map(|index| (index * KEY_DISTANCE, index));
        table.bulk_load(records, |_| {}).expect("a load");
        let opened = open();
        for index in 0..LOADED_COUNT * 3 {
            let key = index * KEY_DISTANCE / 3 + 7;
            table.put(key, index).expect("a put");
        }
        opened
    }

    /// Keys that were loaded, that were written since, and that are absent, in no order.
    fn asked() -> Vec<u64> {
        let all = LOADED_COUNT * KEY_DISTANCE;
        (0..12_000_u64)
            .map(|index| {
                let near = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % all;
                match index % 3 {
                    0 => near / KEY_DISTANCE * KEY_DISTANCE,
                    1 => near * 3 / KEY_DISTANCE * KEY_DISTANCE / 3 + 7,
                    _ => near,
                }
            })
            .collect()
    }

    fn noted(table: &AsyncTable) -> Option<SequenceNumber> {
        table.session.unfinished.note().oldest()
    }

    /// Promise: a get that begins at once gives the answer of the ordinary operation and costs what
    /// that costs, to the byte, whatever it meets: right hints, stale ones, announced leaves.
    #[test]
    fn a_get_at_once_costs_what_the_ordinary_get_costs() {
        for slots in [8, 12, 16] {
            for pool in pools() {
                let options = TableOptions {
                    slots,
                    ..TableOptions::default()
                };
                let open = || (stale(&pool, "t"), stale(&pool, "t"));
                let ((one, table), (other, ordinary)) = split_after(&pool, &options, open);
                for key in asked() {
                    let found = table.get(key).expect("a get");
                    let rest = ordinary.asynchronous().get_rest(key, Rest::All);
                    assert_eq!(other.block_on(rest).expect("a get"), found, "{key}");
                    assert_eq!(other.last_cost(), one.last_cost(), "{key}");
                }
                let [gets, ordinary] = [&one, &other].map(|it| it.counters(OperationKind::Get));
                assert_eq!(gets, ordinary);
                assert!(
                    gets.cost.leaves_read > gets.operations + 300,
                    "hints were stale: {gets:?}"
                );
                assert!(gets.one_leaf_operations > 1000, "and right: {gets:?}");
            }
        }
    }

    /// Promise: the same of many keys at once, as many as go into one batch.
    #[test]
    fn a_multi_get_at_once_costs_what_the_ordinary_one_costs() {
        for pool in pools() {
            let open = || (stale(&pool, "t"), stale(&pool, "t"));
            let options = TableOptions::default();
            let ((one, table), (other, ordinary)) = split_after(&pool, &options, open);
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            let asked = asked();
            let sizes = [0, 1, 2, 15, 16, 17, 1023, 1024].into_iter().cycle();
            let mut from = 0;
            for size in sizes.take(40) {
                let keys = &asked[from..(from + size).min(asked.len())];
                from += keys.len();
                table.multi_get_into(keys, &mut found).expect("values");
                let rest = ordinary.asynchronous();
                let rest = rest.multi_get_rest(keys, &mut expected, Rest::All);
                other.block_on(rest).expect("values");
                assert_eq!(found, expected);
                assert_eq!(one.last_cost(), other.last_cost(), "{size} keys");
            }
            let [gets, ordinary] = [&one, &other].map(|it| it.counters(OperationKind::MultiGet));
            assert_eq!(gets, ordinary);
            assert!(gets.cost.leaves_read > from as u64 + 1000, "{gets:?}");
        }
    }

    /// P1: a get that has not ended at its first leaf is noted until it ends, and one that has
    /// leaves no note.
    #[test]
    fn a_get_is_noted_while_it_lasts() {
        let [pool, _] = pools();
        let open = || stale(&pool, "t");
        let (_session, table) = split_after(&pool, &TableOptions::default(), open);
        let table = table.asynchronous();
        let (mut done_count, mut unfinished_count) = (0, 0);
        for key in asked() {
            match table.get_at_once(key) {
                GetBegun::Done(_) => done_count += 1,
                GetBegun::Unfinished(Rest::Elsewhere(begun, _)) => {
                    unfinished_count += 1;
                    assert_eq!(noted(table), Some(SequenceNumber(0)));
                    drop(begun);
                }
                GetBegun::Unfinished(Rest::All) => panic!("nothing has changed in the pool"),
            }
            assert_eq!(noted(table), None);
        }
        assert!(done_count > 1000 && unfinished_count > 1000);
    }

    /// P1: gets between the steps of an operation that goes on, whether they end at once, go on
    /// elsewhere or follow a new number first, leave its note as it is.
    #[test]
    fn gets_beside_an_unfinished_operation_keep_its_note() {
        let [pool, _] = pools();
        let open = || stale(&pool, "t");
        let (session, table) = split_after(&pool, &TableOptions::default(), open);
        let shared = table.asynchronous();
        let operation = session.block_on(shared.begin()).expect("nothing to follow");
        let asked = asked();
        for (index, key) in asked.iter().enumerate() {
            if index == asked.len() / 2 {
                drop_another_table(&pool);
            }
            table.get(*key).expect("a get");
            let keys = [*key, key + 1];
            table.multi_get(&keys).expect("two gets");
            assert_eq!(noted(shared), Some(SequenceNumber(0)));
        }
        let gets = session.counters(OperationKind::Get);
        assert!(gets.cost.leaves_read > gets.operations, "{gets:?}");
        drop(operation);
        assert_eq!(noted(shared), None);
        table.get(0).expect("a get");
        assert_eq!(noted(shared), None);
    }

    /// Makes a table and drops it, and waits until this process has seen its number (P2).
    fn drop_another_table(pool: &Pool) {
        let session = pool.session().expect("a session");
        let options = TableOptions::default();
        session.create_table("another", &options).expect("a table");
        session.drop_table("another").expect("it is there");
        let started = Instant::now();
        while pool.0.share.process.note.sequence_after_note() == SequenceNumber(0) {
            assert!(started.elapsed() < Duration::from_secs(20), "no new number");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// P1, with a write that really waits, for a lock that another session holds: gets go on beside
    /// it, read what was committed, and leave its note; it ends when the lock is free.
    #[test]
    fn gets_beside_a_waiting_write_keep_its_note() {
        for pool in pools() {
            let session = pool.session().expect("a session");
            let options = TableOptions::default();
            let table = session.create_table("t", &options).expect("a table");
            table.put(1, 10).expect("a put");
            let (holder, held) = stale(&pool, "t");
            let held = held.asynchronous();
            let access = held.session.access(&held.state);
            let lock = access.geometry.lock(held.state.entry.record.first_leaf);
            let mut batch = Batch::new();
            let swap = batch.compare_swap(lock, 0, access.owner.word());
            let swapped = access.endpoint.execute(&mut batch);
            holder.block_on(swapped).expect("a swap");
            assert_eq!(batch.previous(swap), 0, "nobody held it");

            let shared = table.asynchronous();
            let mut put = pin!(shared.put(1, 11));
            let mut context = Context::from_waker(Waker::noop());
            assert!(put.as_mut().poll(&mut context).is_pending());
            assert_eq!(noted(shared), Some(SequenceNumber(0)));
            assert_eq!(table.get(1).expect("a get"), Some(10));
            assert_eq!(table.multi_get(&[1, 2]).expect("gets"), [Some(10), None]);
            drop_another_table(&pool);
            assert_eq!(table.get(1).expect("a get"), Some(10));
            assert_eq!(noted(shared), Some(SequenceNumber(0)));
            assert!(matches!(put.as_mut().poll(&mut context), Poll::Pending));

            batch.clear();
            batch.write_word(lock, 0);
            let unlocked = access.endpoint.execute(&mut batch);
            holder.block_on(unlocked).expect("a write");
            assert_eq!(session.block_on(put).expect("a put"), Some(10));
            assert_eq!(table.get(1).expect("a get"), Some(11));
            assert_eq!(noted(shared), None);
        }
    }
}
