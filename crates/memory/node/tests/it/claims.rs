//! Several sessions claim chunks at once.

use core::cell::Cell;
use core::future::{Future, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use farleaf_base::{NodeId, OwnerWord, TableId};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, VerbKind};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

use crate::pool::Pool;

/// Number of swaps at which another session has the chunk.
const LOST_COUNT: u32 = 8;

/// Endpoint at whose first swaps another session is faster, and then releases the chunk.
struct Contended {
    inner: MappedEndpoint,
    lost_count: Cell<u32>,
}

impl Contended {
    fn execute_now(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let swap = batch
            .verbs()
            .iter()
            .find(|verb| verb.kind == VerbKind::CompareSwap);
        let Some(word) = swap.map(|verb| verb.addr) else {
            return self.inner.execute_now(batch);
        };
        if self.lost_count.get() == LOST_COUNT {
            return self.inner.execute_now(batch);
        }
        self.lost_count.set(self.lost_count.get() + 1);
        let set = |value| {
            let mut other = Batch::new();
            other.write_word(word, value);
            self.inner.execute_now(&mut other)
        };
        set(u64::MAX)?;
        let executed = self.inner.execute_now(batch);
        set(OwnerWord::FREE.word())?;
        executed
    }
}

impl Endpoint for Contended {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        ready(self.execute_now(batch))
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

/// Promise: a claimant that loses lets other tasks of its thread run before it retries: the winner
/// may be among them.
#[test]
fn a_claimant_that_loses_gives_way() {
    let mut pool = Pool::new();
    let owner = pool.register();
    let allocator = ChunkAllocator::new(&pool.plain, &pool.layout, owner);
    let purpose = ChunkPurpose::Leaves { slots: 8 };
    // All chunks were in use once, and one was given back.
    let count = pool.layout.superblock.chunk_count;
    let all = ChunkAllocator::new(&pool.plain, &pool.layout, owner).taking_reserve();
    for _ in 0..count {
        block_on(all.claim(1, purpose, TableId(1)), || 0).expect("one is free");
    }
    assert!(
        block_on(all.claim(1, purpose, TableId(1)), || 0).is_err(),
        "all are taken"
    );
    let one = farleaf_pool::allocation::ChunkRange {
        first: ChunkIndex(count - 1),
        count: 1,
    };
    let given_back =
        allocator.give_back(one, ChunkPurpose::Free, TableId(1), FreeLeaves::default());
    block_on(given_back, || 0).expect("nothing fails");

    let endpoint = Contended {
        inner: pool.endpoint(),
        lost_count: Cell::new(0),
    };
    let allocator = ChunkAllocator::new(&endpoint, &pool.layout, owner);
    let mut claim = pin!(allocator.claim(1, purpose, TableId(1)));
    let mut context = Context::from_waker(Waker::noop());
    let mut pending_count = 0;
    let claimed = loop {
        match claim.as_mut().poll(&mut context) {
            Poll::Ready(claimed) => break claimed,
            Poll::Pending => pending_count += 1,
        }
        assert!(pending_count < 10_000, "it goes on");
    };
    assert_eq!(claimed.expect("it is free"), one);
    assert_eq!(endpoint.lost_count.get(), LOST_COUNT);
    assert!(pending_count >= LOST_COUNT, "{pending_count}");
}
