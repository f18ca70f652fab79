//! Inputs that were honest before they were changed at random, for everything that reads what
//! another host has sent.
//!
//! | module | who reads |
//! |---|---|
//! | `decoders` | greetings; frames, up to what their verbs do to a region |
//! | `client` | a client's connection, whose node lies |
//! | `node` | a whole node, whose clients know the secret and mean harm |
//!
//! How long each runs, and how a case is run again: [`crate::fuzzing`].

mod client;
mod decoders;
mod node;

use farleaf_types::{NodeId, WordAddr};

use crate::batch::Batch;
use crate::fuzzing::{EDGES, Random, run};

/// A batch that mostly stays within a region of so many words.
fn batch_within(random: &mut Random, region_size_words: u64) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=random.below(8) {
        let index = if random.one_in(16) {
            EDGES[random.index(EDGES.len())] & ((1 << 48) - 1)
        } else {
            random.below(region_size_words)
        };
        let addr = WordAddr::new(NodeId(0), index);
        let word_count = random.index(24);
        match random.below(4) {
            0 => drop(batch.read(addr, word_count)),
            1 => {
                let words: Vec<u64> = (0..word_count).map(|_| random.next()).collect();
                batch.write(addr, &words);
            }
            // Words are small, so that some swaps succeed.
            2 => drop(batch.compare_swap(addr, random.below(2), random.next())),
            _ => drop(batch.fetch_add(addr, random.next())),
        }
    }
    batch
}
