//! Batches as values: the verbs posted with one doorbell (FABRIC-1).

use core::ops::Range;

use farleaf_base::WordAddr;

use crate::cost::Cost;

/// Kind of a verb, which defines its words in the batch's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbKind {
    /// Copies words from far memory into the batch.
    Read,
    /// Copies words of the batch into far memory, each word atomically, in any order among them.
    Write,
    /// Compares one word with `words[0]` and, if equal, stores `words[1]`; `words[2]` receives the
    /// previous value.
    CompareSwap,
    /// Adds `words[0]` to one word, wrapping; `words[1]` receives the previous value.
    FetchAdd,
}

/// One verb of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// Kind of the verb.
    pub kind: VerbKind,
    /// True if the verb takes effect only after all earlier READs and atomics of the batch
    /// (FABRIC-2).
    pub fence: bool,
    /// First word in far memory.
    pub addr: WordAddr,
    /// Index of the verb's first word in the batch's buffer.
    pub start: u32,
    /// Number of words of far memory that the verb accesses.
    pub word_count: u32,
}

impl Verb {
    /// Returns the range of the batch's buffer that receives the verb's result; empty for a WRITE.
    #[inline]
    pub(crate) fn result_range(&self) -> Range<usize> {
        let start = self.start as usize;
        match self.kind {
            VerbKind::Read => start..start + self.word_count as usize,
            VerbKind::Write => start..start,
            VerbKind::CompareSwap => start + 2..start + 3,
            VerbKind::FetchAdd => start + 1..start + 2,
        }
    }
}

/// Position of a READ's result; see [`Batch::words`].
#[derive(Clone, Copy, Debug)]
pub struct ReadSlot {
    start: u32,
    word_count: u32,
}

/// Position of the previous value of a CAS or FAA; see [`Batch::previous`].
#[derive(Clone, Copy, Debug)]
pub struct AtomicSlot(u32);

/// Verbs that are posted together, with their data and their accumulated cost.
///
/// A batch is meant for reuse. [`clear`](Batch::clear) removes the verbs and keeps the buffers, so
/// an operation that takes its batch from a pool allocates nothing. The cost accumulates over
/// `clear` until [`take_cost`](Batch::take_cost).
#[derive(Debug, Default)]
pub struct Batch {
    verbs: Vec<Verb>,
    /// Data of all verbs. Only `words[..used]` belongs to the current verbs. The rest is left from
    /// earlier use, so that READ slots need not be zeroed again.
    words: Vec<u64>,
    used: usize,
    fence_next: bool,
    cost: Cost,
}

impl Batch {
    /// Returns an empty batch without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the verbs, and keeps the buffers and the cost.
    #[inline]
    pub fn clear(&mut self) {
        self.verbs.clear();
        self.used = 0;
        self.fence_next = false;
    }

    /// Returns true if the batch has no verbs.
    pub fn is_empty(&self) -> bool {
        self.verbs.is_empty()
    }

    /// Returns the number of verbs.
    pub fn verb_count(&self) -> usize {
        self.verbs.len()
    }

    /// Returns the verbs in posting order.
    #[inline]
    pub fn verbs(&self) -> &[Verb] {
        &self.verbs
    }

    /// Marks the next verb as fenced (FABRIC-2): it takes effect only after all earlier READs and
    /// atomics of this batch.
    pub fn fence(&mut self) {
        self.fence_next = true;
    }

    /// Adds a READ of `word_count` words, starting at `from`.
    #[inline]
    pub fn read(&mut self, from: WordAddr, word_count: usize) -> ReadSlot {
        let start = self.push(VerbKind::Read, from, word_count, word_count);
        ReadSlot {
            start,
            word_count: word_count as u32,
        }
    }

    /// Adds a WRITE of `words`, starting at `to`.
    #[inline]
    pub fn write(&mut self, to: WordAddr, words: &[u64]) {
        let start = self.push(VerbKind::Write, to, words.len(), words.len()) as usize;
        self.words[start..start + words.len()].copy_from_slice(words);
    }

    /// Adds a WRITE of one word, which is atomic.
    #[inline]
    pub fn write_word(&mut self, to: WordAddr, word: u64) {
        let start = self.push(VerbKind::Write, to, 1, 1) as usize;
        self.words[start] = word;
    }

    /// Adds a compare-and-swap of the word at `at`.
    #[inline]
    pub fn compare_swap(&mut self, at: WordAddr, expected: u64, desired: u64) -> AtomicSlot {
        let start = self.push(VerbKind::CompareSwap, at, 1, 3);
        let words = &mut self.words[start as usize..start as usize + 3];
        words.copy_from_slice(&[expected, desired, !expected]);
        AtomicSlot(start + 2)
    }

    /// Adds a fetch-and-add on the word at `at`.
    #[inline]
    pub fn fetch_add(&mut self, at: WordAddr, delta: u64) -> AtomicSlot {
        let start = self.push(VerbKind::FetchAdd, at, 1, 2);
        self.words[start as usize] = delta;
        AtomicSlot(start + 1)
    }

    /// Returns the result of a READ. Meaningless before the batch has completed.
    #[inline]
    pub fn words(&self, slot: ReadSlot) -> &[u64] {
        &self.words[slot.start as usize..(slot.start + slot.word_count) as usize]
    }

    /// Returns the value of the word before a CAS or FAA. Meaningless before the batch has
    /// completed.
    #[inline]
    pub fn previous(&self, slot: AtomicSlot) -> u64 {
        self.words[slot.0 as usize]
    }

    /// Returns the cost of this batch's executions since the last [`take_cost`](Batch::take_cost).
    #[inline]
    pub fn cost(&self) -> &Cost {
        &self.cost
    }

    /// Returns the cost, to which higher layers add retries and leaves read.
    #[inline]
    pub fn cost_mut(&mut self) -> &mut Cost {
        &mut self.cost
    }

    /// Returns the cost and resets it to zero.
    #[inline]
    pub fn take_cost(&mut self) -> Cost {
        core::mem::take(&mut self.cost)
    }

    /// Returns the verbs, the buffer that their `start` indexes, and the cost. For backends.
    #[inline]
    pub fn parts_mut(&mut self) -> (&[Verb], &mut [u64], &mut Cost) {
        (&self.verbs, &mut self.words[..self.used], &mut self.cost)
    }

    #[inline]
    fn push(
        &mut self,
        kind: VerbKind,
        addr: WordAddr,
        word_count: usize,
        buffer_word_count: usize,
    ) -> u32 {
        let start = self.used;
        self.used += buffer_word_count;
        if self.used > self.words.len() {
            self.grow();
        }
        let fence = core::mem::take(&mut self.fence_next);
        let verb = Verb {
            kind,
            fence,
            addr,
            start: start as u32,
            word_count: word_count as u32,
        };
        self.verbs.push(verb);
        start as u32
    }

    #[cold]
    fn grow(&mut self) {
        assert!(
            u32::try_from(self.used).is_ok(),
            "a batch holds less than 2^32 words"
        );
        self.words.resize(self.used.next_power_of_two().max(64), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn at(index: u64) -> WordAddr {
        WordAddr::new(NodeId(0), index)
    }

    #[test]
    fn verbs_keep_posting_order_and_their_own_words() {
        let mut batch = Batch::new();
        let read = batch.read(at(10), 4);
        batch.write(at(20), &[7, 8]);
        batch.fence();
        let atomic = batch.compare_swap(at(30), 1, 2);
        batch.write_word(at(40), 9);
        let kinds: Vec<_> = batch
            .verbs()
            .iter()
            .map(|verb| (verb.kind, verb.fence))
            .collect();
        assert_eq!(
            kinds,
            [
                (VerbKind::Read, false),
                (VerbKind::Write, false),
                (VerbKind::CompareSwap, true),
                (VerbKind::Write, false)
            ]
        );
        assert_eq!(batch.words(read).len(), 4);
        let (verbs, words, _) = batch.parts_mut();
        let write = verbs[1];
        assert_eq!(words[write.start as usize..][..2], [7, 8]);
        assert_eq!(words[verbs[2].start as usize..][..2], [1, 2]);
        assert_ne!(
            batch.previous(atomic),
            1,
            "an unexecuted CAS must not look like a success"
        );
    }

    #[test]
    fn clear_keeps_the_cost_and_forgets_the_verbs() {
        let mut batch = Batch::new();
        batch.read(at(0), 100);
        batch.cost_mut().round_trips += 1;
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.take_cost().round_trips, 1);
        assert_eq!(batch.cost().round_trips, 0);
    }
}
