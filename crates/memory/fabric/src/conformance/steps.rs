//! Common steps of cases: one verb in its own batch, and waits for other clients.

use crate::conformance::at;
use crate::{Batch, Endpoint};

/// Number of futile READs after which a wait fails: about ten seconds in memory.
const WAIT_READ_COUNT_MAX: u64 = 100_000_000;
/// Number of reads of a wait before it yields the processor.
const SPIN_COUNT: u64 = 64;

/// Executes a batch that must succeed.
pub(super) async fn execute<E: Endpoint>(endpoint: &E, batch: &mut Batch) {
    if let Err(error) = endpoint.execute(batch).await {
        panic!("a batch inside of the memory failed: {error}");
    }
}

/// Writes words in a separate batch.
pub(super) async fn write<E: Endpoint>(endpoint: &E, index: u64, words: &[u64]) {
    let mut batch = Batch::new();
    batch.write(at(index), words);
    execute(endpoint, &mut batch).await;
}

/// Reads words in a separate batch.
pub(super) async fn read<E: Endpoint>(endpoint: &E, index: u64, word_count: usize) -> Vec<u64> {
    let mut batch = Batch::new();
    let slot = batch.read(at(index), word_count);
    execute(endpoint, &mut batch).await;
    batch.words(slot).to_vec()
}

/// Reads a word in a separate batch.
pub(super) async fn read_word<E: Endpoint>(endpoint: &E, index: u64) -> u64 {
    read(endpoint, index, 1).await[0]
}

/// Executes a fetch-and-add in a separate batch; returns the previous value.
pub(super) async fn fetch_add<E: Endpoint>(endpoint: &E, index: u64, delta: u64) -> u64 {
    let mut batch = Batch::new();
    let slot = batch.fetch_add(at(index), delta);
    execute(endpoint, &mut batch).await;
    batch.previous(slot)
}

/// Executes a compare-and-swap in a separate batch; returns `Err` with the value found if it did
/// not swap.
pub(super) async fn compare_swap<E: Endpoint>(
    endpoint: &E,
    index: u64,
    expected: u64,
    desired: u64,
) -> Result<(), u64> {
    let mut batch = Batch::new();
    let slot = batch.compare_swap(at(index), expected, desired);
    execute(endpoint, &mut batch).await;
    let previous = batch.previous(slot);
    if previous == expected {
        Ok(())
    } else {
        Err(previous)
    }
}

/// Reads a word until it is at least `target`.
pub(super) async fn wait_for<E: Endpoint>(endpoint: &E, index: u64, target: u64) {
    let mut batch = Batch::new();
    for read in 1..=WAIT_READ_COUNT_MAX {
        batch.clear();
        let slot = batch.read(at(index), 1);
        execute(endpoint, &mut batch).await;
        if batch.words(slot)[0] >= target {
            return;
        }
        if read % SPIN_COUNT == 0 {
            std::thread::yield_now();
        }
    }
    panic!("word {index} never came to be {target}");
}

/// Waits until `client_count` clients have called this for the `round`-th time, counted from 0.
/// Word `index` belongs to the barrier.
pub(super) async fn rendezvous<E: Endpoint>(
    endpoint: &E,
    index: u64,
    client_count: u64,
    round: u64,
) {
    fetch_add(endpoint, index, 1).await;
    wait_for(endpoint, index, (round + 1) * client_count).await;
}
