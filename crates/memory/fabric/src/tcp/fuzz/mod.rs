//! Fuzzing: valid inputs with random changes, for all code that reads what another host has sent.
//!
//! | module | reader under test |
//! |---|---|
//! | `decoders` | messages; frames, up to the effects of their verbs on a node's memory |
//! | `client` | a client's connection to a malicious node |
//! | `node` | a whole node, with malicious clients that know the secret |
//!
//! [`farleaf_base::fuzzing`] describes the running time, and how to repeat a case.

mod client;
mod decoders;
mod node;

use farleaf_base::{NodeId, WordAddr};

use crate::batch::Batch;
use farleaf_base::fuzzing::{EDGES, run};
use farleaf_base::random::Random;

/// Returns a batch that mostly stays within a node's memory of this size.
fn batch_within(random: &mut Random, memory_size_words: u64) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=random.below(8) {
        let index = if random.one_in(16) {
            EDGES[random.index(EDGES.len())] & ((1 << 48) - 1)
        } else {
            random.below(memory_size_words)
        };
        let addr = WordAddr::new(NodeId(0), index);
        let word_count = random.index(24);
        match random.below(4) {
            0 => drop(batch.read(addr, word_count)),
            1 => {
                let words: Vec<u64> = (0..word_count).map(|_| random.bits()).collect();
                batch.write(addr, &words);
            }
            // Use small words, so that some swaps succeed.
            2 => drop(batch.compare_swap(addr, random.below(2), random.bits())),
            _ => drop(batch.fetch_add(addr, random.bits())),
        }
    }
    batch
}
