//! Moves leaves to another place while sessions use them, as batches.
//!
//! - **Locks.** The mover holds the locks of the sources, one leaf or two neighbors, taken right to
//!   left. Under the locks it has checked that the left source links to the right one.
//! - **One step, one batch.** The batch writes the new leaf whole, locked by the mover. Then it
//!   retires the sources in favor of the new leaf, the right one first, each by link, state and
//!   unlock. Then it unlocks the new leaf. Any prefix of the batch (FABRIC-5) leaves each source
//!   unchanged, or retired to a leaf that covers its range; recovery (LEAF-8) finishes the rest. If
//!   only the right source is retired, the new leaf must not be changed at keys of the left one
//!   until the left one is retired too. A writer ensures this: if a hint leads it to a retired leaf
//!   that begins above its key, it searches to the left.
//! - **Link.** The new leaf covers the keys of its sources and links to where the right one linked.
//!   If that is a source of the previous step, it links to the leaf that replaced that source.
//! - **Different nodes.** Verbs to different nodes are unordered (FABRIC-2). If the new leaf is on
//!   another node than the sources, which share one node, the three parts of a step are three
//!   awaited batches. A failure in between leaves the same prefixes.
//!
//! After each step, a leaf on the left links to a retired one. The next step moves that leaf; after
//! the last step, [`LeafChange::relink`] links it to the new leaf.

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::Batch;

use crate::words::change::LeafChange;
use crate::words::image::LeafBuffer;

/// Locked leaf that is to be moved.
#[derive(Debug)]
pub struct MoveSource {
    /// Address of the leaf.
    pub addr: RemoteAddr,
    /// Contents of the leaf.
    pub leaf: LeafBuffer,
}

impl LeafChange {
    /// Moves the sources, left to right, into this leaf, which nothing points to yet, and returns
    /// the new leaf. The module documentation says what `link` must be. The records must fit. Posts
    /// one batch if all leaves are on one node; otherwise the caller posts the parts one after the
    /// other.
    pub fn take_over(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        sources: &mut [MoveSource],
        link: RemoteAddr,
    ) -> LeafBuffer {
        let leaf = self.write_moved(batch, mover, sources, link);
        self.retire_sources(batch, sources);
        self.unlock(batch);
        leaf
    }

    /// Writes the first part of a step: the new leaf, complete and locked.
    pub fn write_moved(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        sources: &[MoveSource],
        link: RemoteAddr,
    ) -> LeafBuffer {
        let (first, last) = (sources[0].leaf.image(), &sources[sources.len() - 1]);
        let (low, high) = (first.low(), last.leaf.image().high());
        let mut records = Vec::new();
        for source in sources {
            let image = source.leaf.image();
            image.append_sorted(image.low(), &mut records);
        }
        let mut leaf = LeafBuffer::new(self.geometry, low, high, link);
        for (slot, (key, value)) in records.iter().enumerate() {
            leaf.set_record(slot, *key, *value);
        }
        leaf.seal(self.addr, self.table);
        let (mut words, size) = leaf.leaf_words();
        words[0] = mover.word();
        batch.write(self.geometry.lock(self.addr), &words[..size]);
        leaf
    }

    /// Writes the second part of a step: retires the sources, the right one first. All must be on
    /// one node.
    pub fn retire_sources(&self, batch: &mut Batch, sources: &mut [MoveSource]) {
        for source in sources.iter_mut().rev() {
            let change = Self {
                addr: source.addr,
                ..*self
            };
            change.retire(batch, &mut source.leaf, self.addr);
        }
    }

    /// Links a locked leaf to another right sibling, which begins at the same key: link, state,
    /// unlock. A retired leaf stays retired.
    pub fn relink(&self, batch: &mut Batch, leaf: &mut LeafBuffer, link: RemoteAddr) {
        if leaf.image().is_retired() {
            self.retire(batch, leaf, link);
            return;
        }
        leaf.set_link(link);
        batch.write_word(self.geometry.link(self.addr), link.word());
        self.commit(batch, leaf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::LeafGeometry;
    use farleaf_base::{Incarnation, NodeId, SessionId, TableId};
    use farleaf_fabric::{Verb, VerbKind};

    fn at(block: u64) -> LeafChange {
        LeafChange {
            geometry: LeafGeometry::new(8).expect("allowed"),
            addr: RemoteAddr::new(NodeId(0), block),
            table: TableId(1),
            next: OwnerWord::FREE,
        }
    }

    fn source(block: u64, low: u64, high: u64, link: u64) -> MoveSource {
        let change = at(block);
        let link = at(link).addr;
        let mut leaf = LeafBuffer::new(change.geometry, low, high, link);
        leaf.set_record(2, high, high + 1);
        leaf.set_record(5, low, low + 1);
        leaf.seal(change.addr, change.table);
        MoveSource {
            addr: change.addr,
            leaf,
        }
    }

    /// A step writes the new leaf, retires the right source, then the left one, then unlocks the
    /// new leaf.
    #[test]
    fn a_step_writes_the_new_leaf_and_retires_from_the_right() {
        let (new, mut batch) = (at(500), Batch::new());
        let owner = OwnerWord::new(SessionId::new(3).expect("a number"), Incarnation::new(9));
        let mut sources = [source(100, 10, 19, 200), source(200, 20, 29, 300)];
        let leaf = new.take_over(&mut batch, owner, &mut sources, at(300).addr);
        let image = leaf.image();
        assert!(image.is_intact(new.addr, new.table));
        assert_eq!((image.low(), image.high()), (10, 29));
        assert_eq!(image.link(), at(300).addr);
        let records: Vec<_> = [10, 19, 20, 29].map(|key| (key, image.get(key))).into();
        assert_eq!(
            records,
            [
                (10, Some(11)),
                (19, Some(20)),
                (20, Some(21)),
                (29, Some(30))
            ]
        );
        let written: Vec<(u64, u32)> = batch.verbs().iter().map(place).collect();
        let (left, right) = (
            at(100).addr.word_at(0).index(),
            at(200).addr.word_at(0).index(),
        );
        let place = new.addr.word_at(0).index();
        assert_eq!(
            written,
            [
                (place, 21),
                (right + 4, 1),
                (right + 1, 1),
                (right, 1),
                (left + 4, 1),
                (left + 1, 1),
                (left, 1),
                (place, 1)
            ]
        );
        for source in sources {
            let image = source.leaf.image();
            assert!(image.is_retired() && image.is_intact(source.addr, new.table));
            assert_eq!(image.link().place(), new.addr);
        }
    }

    fn place(verb: &Verb) -> (u64, u32) {
        assert_eq!(verb.kind, VerbKind::Write);
        (verb.addr.index(), verb.word_count)
    }

    /// A relinked leaf stays live or retired.
    #[test]
    fn relinking_changes_the_link_alone() {
        let mut batch = Batch::new();
        let mut live = source(100, 10, 19, 200);
        at(100).relink(&mut batch, &mut live.leaf, at(300).addr);
        assert!(!live.leaf.image().is_retired());
        assert_eq!(live.leaf.image().link(), at(300).addr);
        assert_eq!(batch.verb_count(), 3);
        at(100).retire(&mut batch, &mut live.leaf, at(300).addr);
        at(100).relink(&mut batch, &mut live.leaf, at(400).addr);
        assert!(live.leaf.image().is_retired());
        assert_eq!(live.leaf.image().link().place(), at(400).addr);
    }
}
