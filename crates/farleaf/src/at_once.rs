//! Reads that complete without a future, on pools whose memory this process has mapped.
//!
//! A blocking get then needs a future only for its rest, if it does not complete at the first leaf.

use farleaf_fabric::OperationKind;
use farleaf_index::operation::{GetAtOnce, MissedLeaf, MultiGetAtOnce};

use crate::begin::OperationGuard;
use crate::host::SessionHost;
use crate::{AsyncTable, Error};

/// Remaining part of a read that has not completed at once.
pub(crate) enum RemainingRead<'a, W> {
    /// The whole read: nothing has begun.
    All,
    /// The read has begun, and continues from this state.
    MissedLeaf(OperationGuard<'a>, W),
}

/// State of a get after its first leaf.
pub(crate) enum GetAttempt<'a> {
    Done(Option<u64>),
    Unfinished(RemainingRead<'a, MissedLeaf>),
}

/// State of a `multi_get` after one leaf per key.
pub(crate) enum MultiGetAttempt<'a> {
    Done,
    Unfinished(RemainingRead<'a, Vec<MissedLeaf>>),
}

impl<H: SessionHost> AsyncTable<H> {
    #[inline]
    pub(crate) fn get_at_once(&self, key: u64) -> GetAttempt<'_> {
        let Some(guard) = self.session.begin_briefly(&self.state) else {
            return GetAttempt::Unfinished(RemainingRead::All);
        };
        let index = self.index();
        match index.get_at_once(key) {
            GetAtOnce::Value(value) => {
                let cost = index.cost_at_once(1);
                self.session.record(OperationKind::Get, cost);
                GetAttempt::Done(value)
            }
            GetAtOnce::MissedLeaf(elsewhere) => {
                GetAttempt::Unfinished(RemainingRead::MissedLeaf(guard.keep(), elsewhere))
            }
            GetAtOnce::Unable => GetAttempt::Unfinished(RemainingRead::All),
        }
    }

    #[cold]
    pub(crate) async fn get_rest(
        &self,
        key: u64,
        rest: RemainingRead<'_, MissedLeaf>,
    ) -> Result<Option<u64>, Error> {
        if self.is_remote() {
            return self.get_remote(key).await;
        }
        if self.has_node_writes() {
            return self.get_by_models(key, rest).await;
        }
        if let RemainingRead::MissedLeaf(guard, elsewhere) = rest {
            let mut operation = self.operation(guard);
            let batch = &mut operation.batch;
            let value = operation.index.continue_get(batch, key, elsewhere).await;
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
    ) -> MultiGetAttempt<'_> {
        let Some(guard) = self.session.begin_briefly(&self.state) else {
            return MultiGetAttempt::Unfinished(RemainingRead::All);
        };
        let index = self.index();
        match index.multi_get_at_once(keys, values) {
            MultiGetAtOnce::Read(elsewhere) if elsewhere.is_empty() => {
                let cost = index.cost_at_once(keys.len());
                self.session.record(OperationKind::MultiGet, cost);
                MultiGetAttempt::Done
            }
            MultiGetAtOnce::Read(elsewhere) => {
                MultiGetAttempt::Unfinished(RemainingRead::MissedLeaf(guard.keep(), elsewhere))
            }
            MultiGetAtOnce::Unable => MultiGetAttempt::Unfinished(RemainingRead::All),
        }
    }

    #[cold]
    pub(crate) async fn multi_get_rest(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
        rest: RemainingRead<'_, Vec<MissedLeaf>>,
    ) -> Result<(), Error> {
        if self.is_remote() {
            return self.multi_get_remote(keys, values).await;
        }
        if self.has_node_writes() {
            return self.multi_get_by_models(keys, values).await;
        }
        if let RemainingRead::MissedLeaf(guard, elsewhere) = rest {
            let mut operation = self.operation(guard);
            let batch = &mut operation.batch;
            let index = operation.index;
            let done = index.continue_multi_get(batch, keys, values, &elsewhere);
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

    use farleaf_base::SequenceNumber;
    use farleaf_fabric::{Batch, Endpoint};

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
                // No retraining, so that the synonyms that splits create stay.
                retrain_thread_count: 0,
                ..PoolOptions::default()
            })
            .expect("a pool")
        })
    }

    /// Opens a table before its leaves are split, so that the session's hints are outdated.
    fn stale(pool: &Pool, name: &str) -> (Session, Table) {
        let session = pool.session().expect("a session");
        let table = session.open_table(name).expect("a table");
        (session, table)
    }

    /// Creates and loads a table, calls `open`, and then splits the table's leaves.
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

    /// Returns keys in no order: loaded ones, ones written since, and absent ones.
    fn sample_keys() -> Vec<u64> {
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

    /// Promise: a get at once returns the result of the ordinary operation and has the same cost to
    /// the byte, with right hints, outdated ones and announced leaves.
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
                for key in sample_keys() {
                    let found = table.get(key).expect("a get");
                    let rest = ordinary.asynchronous().get_rest(key, RemainingRead::All);
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

    /// Promise: a `multi_get` at once has the result and the cost of the ordinary one, with as many
    /// keys as one batch has.
    #[test]
    fn a_multi_get_at_once_costs_what_the_ordinary_one_costs() {
        for pool in pools() {
            let open = || (stale(&pool, "t"), stale(&pool, "t"));
            let options = TableOptions::default();
            let ((one, table), (other, ordinary)) = split_after(&pool, &options, open);
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            let keys_read = sample_keys();
            let sizes = [0, 1, 2, 15, 16, 17, 1023, 1024].into_iter().cycle();
            let mut from = 0;
            for size in sizes.take(40) {
                let keys = &keys_read[from..(from + size).min(keys_read.len())];
                from += keys.len();
                table.multi_get_into(keys, &mut found).expect("values");
                let rest = ordinary.asynchronous();
                let rest = rest.multi_get_rest(keys, &mut expected, RemainingRead::All);
                other.block_on(rest).expect("values");
                assert_eq!(found, expected);
                assert_eq!(one.last_cost(), other.last_cost(), "{size} keys");
            }
            let [gets, ordinary] = [&one, &other].map(|it| it.counters(OperationKind::MultiGet));
            assert_eq!(gets, ordinary);
            assert!(gets.cost.leaves_read > from as u64 + 1000, "{gets:?}");
        }
    }

    /// Promise: a get that continues beyond its first leaf has a note until it ends, and leaves
    /// none.
    #[test]
    fn a_get_is_noted_while_it_lasts() {
        let [pool, _] = pools();
        let open = || stale(&pool, "t");
        let (_session, table) = split_after(&pool, &TableOptions::default(), open);
        let table = table.asynchronous();
        let (mut done_count, mut unfinished_count) = (0, 0);
        for key in sample_keys() {
            match table.get_at_once(key) {
                GetAttempt::Done(_) => done_count += 1,
                GetAttempt::Unfinished(RemainingRead::MissedLeaf(guard, _)) => {
                    unfinished_count += 1;
                    assert_eq!(noted(table), Some(SequenceNumber(0)));
                    drop(guard);
                }
                GetAttempt::Unfinished(RemainingRead::All) => {
                    panic!("nothing has changed in the pool")
                }
            }
            assert_eq!(noted(table), None);
        }
        assert!(done_count > 1000 && unfinished_count > 1000);
    }

    /// Promise: gets between the steps of an unfinished operation leave its note unchanged, whether
    /// they end at once, continue elsewhere or catch up to a new number first.
    #[test]
    fn gets_beside_an_unfinished_operation_keep_its_note() {
        let [pool, _] = pools();
        let open = || stale(&pool, "t");
        let (session, table) = split_after(&pool, &TableOptions::default(), open);
        let shared = table.asynchronous();
        let operation = session.block_on(shared.begin()).expect("nothing to follow");
        let keys_read = sample_keys();
        for (index, key) in keys_read.iter().enumerate() {
            if index == keys_read.len() / 2 {
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

    /// Creates and drops a table, and waits until this process has seen the drop's sequence number.
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

    /// Promise: while a write waits for a lock of another session, gets continue beside it, read
    /// what was committed, and leave the write's note. The write ends when the lock is free.
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
