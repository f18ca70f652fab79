//! Moves pages to another place while sessions use them, as batches: for retraining, as
//! [`words::moving`](crate::words::moving) describes, and for splits out of place, which have two
//! new pages.
//!
//! If the pages are on several nodes, the parts of a move are separate, awaited batches, in this
//! order: [`write_new`](PageChange::write_new) of the right page,
//! [`write_locked`](PageChange::write_locked) of the left one,
//! [`retire_sources`](PageChange::retire_sources), [`unlock`](PageChange::unlock).

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::Batch;

use crate::strings::buffer::PageBuffer;
use crate::strings::change::PageChange;

/// Locked page that is to be moved.
#[derive(Clone, Debug)]
pub struct MoveSource {
    /// Address of the page.
    pub addr: RemoteAddr,
    /// Contents of the page.
    pub page: PageBuffer,
}

impl PageChange {
    /// Moves the sources, left to right, into this page, which nothing points to yet. Its link must
    /// be as [`words::moving`](crate::words::moving) requires. One batch: one WRITE of the page,
    /// three for each source, one for its lock. A repacked page has one source.
    pub fn take_over(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        page: &mut PageBuffer,
        sources: &mut [MoveSource],
    ) {
        self.write_locked(batch, page, mover);
        self.retire_sources(batch, sources);
        self.unlock(batch);
    }

    /// Moves a source into two new pages that nothing points to yet; this is the left one. `right`
    /// is the right one at `right_addr`, with its link as [`words::moving`](crate::words::moving)
    /// requires. The left page is linked to it.
    pub fn split_out(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        left: &mut PageBuffer,
        right_addr: RemoteAddr,
        right: &mut PageBuffer,
        source: &mut MoveSource,
    ) {
        let at_right = Self {
            addr: right_addr,
            ..*self
        };
        at_right.write_new(batch, right);
        left.set_link(right_addr);
        self.take_over(batch, mover, left, core::slice::from_mut(source));
    }

    /// Writes the second part of a move: retires the sources in favor of this page, the right one
    /// first. All must be on one node.
    pub fn retire_sources(&self, batch: &mut Batch, sources: &mut [MoveSource]) {
        for source in sources.iter_mut().rev() {
            let addr = source.addr;
            Self { addr, ..*self }.retire(batch, &mut source.page, self.addr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strings::change::tests::{at, page, record, written};
    use farleaf_base::{Incarnation, SessionId};

    /// The order is: the right page, the left one locked, the source's link, state and lock, the
    /// left one's lock.
    #[test]
    fn the_source_is_retired_between_the_halves_and_the_unlock() {
        let (left, right, mut batch) = (at(500), at(600), Batch::new());
        let mover = OwnerWord::new(SessionId::new(3).expect("a number"), Incarnation::new(9));
        let mut source = MoveSource {
            addr: at(100).addr,
            page: page(&at(100), &[record(b"b", b"1"), record(b"c", b"2")]),
        };
        let mut halves = [page(&left, &[]), page(&right, &[])];
        let [left_page, right_page] = &mut halves;
        left.split_out(
            &mut batch,
            mover,
            left_page,
            right.addr,
            right_page,
            &mut source,
        );
        let steps = [left.addr, right.addr, source.addr].map(|addr| written(&batch, addr));
        let all = Some((0, 64));
        let unlock = Some((0, 1));
        assert_eq!(steps[1], [all, None, None, None, None, None]);
        assert_eq!(steps[0], [None, all, None, None, None, unlock]);
        assert_eq!(
            steps[2],
            [None, None, Some((4, 1)), Some((1, 1)), unlock, None]
        );
        let (verbs, words, _) = batch.parts_mut();
        assert_eq!(words[verbs[1].start as usize], mover.word());
        assert_eq!(
            words[verbs[0].start as usize], 0,
            "nobody holds the right one"
        );
        assert_eq!(halves[0].image().link(), right.addr);
        assert!(source.page.image().is_retired());
        assert_eq!(source.page.image().link().place(), left.addr);
    }
}
