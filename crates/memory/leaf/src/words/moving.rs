//! Moving leaves to another place while others work on them (DESIGN L4), as batches.
//!
//! - **M1.** Whoever moves holds the locks of the sources, one leaf or two neighbours, taken right
//!   to left, and has checked under them that the left one links to the right one.
//! - **M2.** One batch does a step: the new leaf is written whole, with its lock held by the mover;
//!   then the sources are retired in favour of it, the right-most first, each by link, state and
//!   unlock; then the new leaf is unlocked. So a prefix of it (F5) leaves the sources as they were,
//!   or retired to a leaf that covers what they covered: D8 finishes what is missing. Where the
//!   right one alone is retired, the new leaf is not to be changed at keys of the left one before
//!   that is, too: a writer that meets a retired leaf which begins behind its key, by a hint, looks
//!   to the left.
//! - **M3.** The new leaf covers the keys of its sources, and links to where the right-most of them
//!   linked; or, if that is a source of the step before, to the leaf that took its place.
//! - **M4.** Nothing orders verbs to different nodes (F2). Where the new leaf is on another node
//!   than the sources, which are on one, the three parts of M2 are three batches, each awaited; a
//!   failure between leaves the same prefixes.
//!
//! What each step leaves behind is a leaf to the left that links to a retired one. The next step
//! moves it; what is left of the last one is linked anew ([`LeafChange::relink`]).

use farleaf_fabric::Batch;
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::change::LeafChange;
use crate::image::LeafBuffer;

/// A locked leaf that is to be moved.
#[derive(Debug)]
pub struct Source {
    /// Where it is.
    pub addr: RemoteAddr,
    /// What it is.
    pub leaf: LeafBuffer,
}

impl LeafChange {
    /// M2: moves the sources, left to right, into this leaf, which nothing points to yet. `link` is
    /// what M3 says. The records must fit. Returns the new leaf. One batch, if all are on one node;
    /// else its parts are posted one after the other (M4).
    pub fn take_over(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        sources: &mut [Source],
        link: RemoteAddr,
    ) -> LeafBuffer {
        let leaf = self.write_moved(batch, mover, sources, link);
        self.retire_sources(batch, sources);
        self.unlock(batch);
        leaf
    }

    /// M2, its first part: the new leaf, whole and locked.
    pub fn write_moved(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        sources: &[Source],
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

    /// M2, its second part: the sources are retired, the right-most first. They are on one node.
    pub fn retire_sources(&self, batch: &mut Batch, sources: &mut [Source]) {
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
    use crate::LeafGeometry;
    use farleaf_fabric::{Verb, VerbKind};
    use farleaf_types::{Incarnation, NodeId, SessionId, TableId};

    fn at(block: u64) -> LeafChange {
        LeafChange {
            geometry: LeafGeometry::new(8).expect("allowed"),
            addr: RemoteAddr::new(NodeId(0), block),
            table: TableId(1),
            next: OwnerWord::FREE,
        }
    }

    fn source(block: u64, (low, high): (u64, u64), link: u64) -> Source {
        let change = at(block);
        let link = at(link).addr;
        let mut leaf = LeafBuffer::new(change.geometry, low, high, link);
        leaf.set_record(2, high, high + 1);
        leaf.set_record(5, low, low + 1);
        leaf.seal(change.addr, change.table);
        Source {
            addr: change.addr,
            leaf,
        }
    }

    /// M2 and M3: the new leaf first, then the right source, then the left one, then the new leaf's
    /// lock.
    #[test]
    fn a_step_writes_the_new_leaf_and_retires_from_the_right() {
        let (new, mut batch) = (at(500), Batch::new());
        let owner = OwnerWord::new(SessionId::new(3).expect("a number"), Incarnation::new(9));
        let mut sources = [source(100, (10, 19), 200), source(200, (20, 29), 300)];
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

    /// A relinked leaf keeps what it is: live or retired.
    #[test]
    fn relinking_changes_the_link_alone() {
        let mut batch = Batch::new();
        let mut live = source(100, (10, 19), 200);
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
