//! Operations whose futures are dropped, or whose batches fail, in a session that continues. Unless
//! it is marked as broken, the session holds nothing that it does not know of.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use farleaf_base::{NodeId, OwnerWord};
use farleaf_executor::{block_on, yield_now};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Counters, Endpoint};
use farleaf_index::operation::{Decision, ScanCursor};

use crate::catalog::{TableShape, find};
use crate::crash::{loaded, sample};
use crate::cutting::{Cut, Tear};
use crate::leaves::{leaves, set_lock, tear};
use crate::maintainer::{SPLIT_KEY, split_cut_off_before_end};
use crate::pool::{Client, Pool, access};
use crate::tables::LEARNED;

/// Endpoint that reports the result of a batch one poll late. An operation can so be dropped when
/// its verbs have taken effect and it does not know it yet.
struct LateReply(MappedEndpoint);

impl Endpoint for LateReply {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let result = self.0.execute_now(batch);
        yield_now().await;
        result
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.0.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.0.memory_word_count(node)
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Get,
    Scan,
    Put,
}

const ALL: [Operation; 3] = [Operation::Get, Operation::Scan, Operation::Put];

/// Polls a future `count` times, then drops it; calls `at_poll` before each. Returns whether it has
/// completed.
fn poll<F: Future>(future: F, count: u32, at_poll: &mut dyn FnMut(u32)) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..count).any(|number| {
        at_poll(number);
        future.as_mut().poll(&mut context).is_ready()
    })
}

impl Operation {
    /// Polls an operation `count` times, then drops it; returns whether it has completed.
    fn poll<E: Endpoint>(
        self,
        client: &Client<'_, E>,
        key: u64,
        count: u32,
        at_poll: &mut dyn FnMut(u32),
    ) -> bool {
        let (index, mut batch) = (client.index(), Batch::new());
        let (mut cursor, mut records) = (ScanCursor::from(key), Vec::new());
        match self {
            Self::Get => poll(index.get(&mut batch, key), count, at_poll),
            Self::Scan => {
                let scan = index.scan(&mut batch, &mut cursor, 4, &mut records);
                poll(scan, count, at_poll)
            }
            Self::Put => {
                let put = index.modify(&mut batch, key, |_| (Decision::Set(1), ()));
                poll(put, count, at_poll)
            }
        }
    }
}

/// Returns whether any lock or chunk in the memory belongs to a session.
fn holds_anything(pool: &Pool, owner: OwnerWord) -> bool {
    let mut words = vec![0; pool.memory.words().len()];
    MappedMemory::copy_out(pool.memory.words(), &mut words);
    words.contains(&owner.word())
}

/// Checks that a session that is not broken owns nothing after it has given back its leases.
fn assert_holds_nothing<E: Endpoint>(client: &Client<'_, E>, pool: &Pool, context: &str) {
    let access = access(&pool.plain, &pool.layout, client.owner, &client.entry);
    for mut lease in client.state.take_leases() {
        block_on(lease.give_back(&access), || 0).expect("nothing fails");
    }
    assert!(!holds_anything(pool, client.owner), "{context}");
}

/// Drops an operation after every number of polls until it completes. Returns after how many of
/// them the session was broken, and the number of polls.
fn drop_everywhere(
    operation: Operation,
    key: u64,
    setup: impl Fn() -> Pool,
    at_poll: impl Fn(&Pool, u32),
) -> (u32, u32) {
    let mut broken_count = 0;
    for count in 1.. {
        let mut pool = setup();
        let owner = pool.register();
        let entry = find(&pool, "records").expect("it is there");
        let endpoint = LateReply(pool.endpoint());
        let client = Client::open(&endpoint, &pool.layout, owner, &entry).expect("it opens");
        let has_ended = operation.poll(&client, key, count, &mut |number| at_poll(&pool, number));
        if client.broken.get() {
            assert!(!has_ended, "an operation that has ended is not cut off");
            broken_count += 1;
        } else {
            let context = format!("{operation:?} dropped after {count} polls");
            assert_holds_nothing(&client, &pool, &context);
        }
        if has_ended {
            return (broken_count, count);
        }
        assert!(count < 1000, "{operation:?} does not end");
    }
    unreachable!("it returns")
}

/// Promise (FABRIC-6, LEAF-8): dropping an operation in the middle of a recovery marks the session
/// as broken.
#[test]
fn a_session_that_drops_an_operation_in_a_recovery_knows_that_it_is_broken() {
    for operation in ALL {
        // Link, high and state of the split are missing: the leaf is torn.
        let setup = || split_cut_off_before_end(7);
        let (broken_count, poll_count) = drop_everywhere(operation, SPLIT_KEY, setup, |_, _| ());
        assert!(broken_count >= 3, "{operation:?}: {broken_count}");
        assert!(poll_count > broken_count, "{operation:?}");
    }
}

/// Promise (FABRIC-6, LEAF-4): dropping an operation while it reads a leaf under its lock marks the
/// session as broken; dropping it while it waits for a lock does no harm.
#[test]
fn a_session_that_drops_an_operation_while_it_waits_for_a_lock_is_not_broken() {
    /// Poll before which the client that holds the lock continues.
    const GOES_ON: u32 = 40;
    for operation in ALL {
        let setup = || {
            let mut pool = loaded(LEARNED, 40);
            let entry = find(&pool, "records").expect("it is there");
            let leaf = leaves(&mut pool, &entry)[2].addr;
            let other = pool.register();
            set_lock(&pool, &entry, leaf, other);
            tear(&pool, &entry, leaf);
            pool
        };
        let entry = find(&setup(), "records").expect("it is there");
        let leaf = leaves(&mut loaded(LEARNED, 40), &entry)[2];
        let go_on = |pool: &Pool, number| {
            if number == GOES_ON {
                tear(pool, &entry, leaf.addr);
                set_lock(pool, &entry, leaf.addr, OwnerWord::FREE);
            }
        };
        let (broken_count, poll_count) = drop_everywhere(operation, leaf.low + 1, setup, go_on);
        assert!(poll_count > GOES_ON, "{operation:?} waits");
        assert!(
            broken_count > 0,
            "{operation:?} holds the lock for a moment"
        );
    }
}

/// Promise (FABRIC-6): dropping a put while it leases a chunk marks the session as broken.
#[test]
fn a_session_that_drops_a_put_while_it_leases_knows_that_it_is_broken() {
    let (broken_count, _) = drop_everywhere(Operation::Put, SPLIT_KEY, full, |_, _| ());
    assert!(broken_count >= 4, "{broken_count}");
}

fn full() -> Pool {
    let shape = TableShape {
        fill_percent: 100,
        ..LEARNED
    };
    loaded(shape, 64)
}

/// Endpoint that executes every batch, but reports one as having an unknown outcome (FABRIC-5);
/// counts them.
struct Unheard {
    inner: MappedEndpoint,
    at: u32,
    batch_count: Cell<u32>,
}

impl Endpoint for Unheard {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        self.inner.execute_now(batch)?;
        let number = self.batch_count.replace(self.batch_count.get() + 1);
        if number == self.at {
            let reason = "the answer was lost here".to_owned();
            return Err(BatchError::new(BatchErrorKind::Unknown { reason }, 0));
        }
        Ok(())
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

/// Promise (FABRIC-5): a batch with an unknown outcome, which may have taken a lock or a chunk,
/// marks the session as broken.
#[test]
fn a_session_that_learns_of_an_unknown_outcome_knows_that_it_is_broken() {
    let setups: [&dyn Fn() -> Pool; 2] = [&full, &|| split_cut_off_before_end(7)];
    for (setup, is_whole) in setups.into_iter().zip([true, false]) {
        for operation in ALL {
            let mut broken_count = 0;
            for at in 0.. {
                let mut pool = setup();
                let owner = pool.register();
                let entry = find(&pool, "records").expect("it is there");
                let endpoint = Unheard {
                    inner: pool.endpoint(),
                    at: u32::MAX,
                    batch_count: Cell::new(0),
                };
                let mut client = Client::open(&endpoint, &pool.layout, owner, &entry)
                    .expect("nothing is unknown yet");
                let endpoint = Unheard {
                    inner: pool.endpoint(),
                    at,
                    batch_count: Cell::new(0),
                };
                client.endpoint = &endpoint;
                let has_ended = operation.poll(&client, SPLIT_KEY, u32::MAX, &mut |_| ());
                assert!(has_ended, "it waits for nobody");
                if client.broken.get() {
                    broken_count += 1;
                } else {
                    let context = format!("{operation:?}, batch {at}");
                    assert_holds_nothing(&client, &pool, &context);
                }
                if endpoint.batch_count.get() <= at {
                    break;
                }
            }
            let is_read = !matches!(operation, Operation::Put);
            assert_eq!(broken_count == 0, is_read && is_whole, "{operation:?}");
        }
    }
}

/// Promise (FABRIC-5): an interrupted claim, which may have left a chunk owned by the session,
/// marks the session as broken.
#[test]
fn a_session_whose_claim_was_cut_off_knows_that_it_is_broken() {
    let mut broken_count = 0;
    for effect_count in 0..60 {
        for tear in [Tear::First, Tear::Last] {
            let mut pool = full();
            let (other, owner) = (pool.register(), pool.register());
            let entry = find(&pool, "records").expect("it is there");
            // Leases the table's own chunk, so that the next split claims a new one.
            let mut writer = pool.client(other, &entry);
            writer.put(SPLIT_KEY + 1000, 1).expect("nothing fails");
            let endpoint = pool.cutting(Cut { effect_count, tear });
            endpoint.go_on();
            let client = Client::open(&endpoint, &pool.layout, owner, &entry);
            let client = client.expect("opening writes nothing");
            assert!(Operation::Put.poll(&client, SPLIT_KEY, u32::MAX, &mut |_| ()));
            if client.broken.get() {
                broken_count += 1;
            } else {
                let context = format!("cut off after {effect_count} effects");
                assert_holds_nothing(&client, &pool, &context);
            }
        }
    }
    assert!(broken_count > 10, "{broken_count}");
}

/// Assumption of these tests: the sample does not contain the key of the split.
#[test]
fn the_key_of_the_split_is_new() {
    assert!(sample(64).iter().all(|(key, _)| *key != SPLIT_KEY));
}
