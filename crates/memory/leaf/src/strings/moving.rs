//! Moving pages to another place while others work on them, as batches: by retraining (M1 to M4 of
//! `farleaf-leaf`), and out of place splits (BP6), which are the same with one page more.
//!
//! The parts of a move whose places are on several nodes are batches of their own, each awaited, in
//! the order in which they stand here (M4): [`write_new`](PageChange::write_new) of the right page,
//! [`write_locked`](PageChange::write_locked) of the left one,
//! [`retire_sources`](PageChange::retire_sources), [`unlock`](PageChange::unlock).

use farleaf_fabric::Batch;
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::buffer::PageBuffer;
use crate::change::PageChange;

/// A locked page that is to be moved.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it is.
    pub addr: RemoteAddr,
    /// What it is.
    pub page: PageBuffer,
}

impl PageChange {
    /// M2: moves the sources, left to right, into this page, which nothing points to yet, and which
    /// links to where M3 says. One batch: one WRITE of the page, three for each source, one for its
    /// lock. A repacked page has one source.
    pub fn take_over(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        page: &mut PageBuffer,
        sources: &mut [Source],
    ) {
        self.write_locked(batch, page, mover);
        self.retire_sources(batch, sources);
        self.unlock(batch);
    }

    /// BP6: moves a source into two pages that nothing points to yet, of which this is the left
    /// one. `right` is where the right one is, and what; it links to where M3 says. The left one is
    /// made to link to it.
    pub fn split_out(
        &self,
        batch: &mut Batch,
        mover: OwnerWord,
        (left, right): (&mut PageBuffer, (RemoteAddr, &mut PageBuffer)),
        source: &mut Source,
    ) {
        let (addr, right) = right;
        Self { addr, ..*self }.write_new(batch, right);
        left.set_link(addr);
        self.take_over(batch, mover, left, core::slice::from_mut(source));
    }

    /// M2, its second part: the sources are retired in favour of this page, the right-most first.
    /// They are on one node.
    pub fn retire_sources(&self, batch: &mut Batch, sources: &mut [Source]) {
        for source in sources.iter_mut().rev() {
            let addr = source.addr;
            Self { addr, ..*self }.retire(batch, &mut source.page, self.addr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::tests::{at, page, record, written};
    use farleaf_types::{Incarnation, SessionId};

    /// BP6, M2: the right page, the left one locked, the source's link, state and lock, the left
    /// one's lock.
    #[test]
    fn bp6_the_source_is_retired_between_the_halves_and_the_unlock() {
        let (left, right, mut batch) = (at(500), at(600), Batch::new());
        let mover = OwnerWord::new(SessionId::new(3).expect("a number"), Incarnation::new(9));
        let mut source = Source {
            addr: at(100).addr,
            page: page(&at(100), &[record(b"b", b"1"), record(b"c", b"2")]),
        };
        let mut halves = [page(&left, &[]), page(&right, &[])];
        let [left_page, right_page] = &mut halves;
        let both = (left_page, (right.addr, right_page));
        left.split_out(&mut batch, mover, both, &mut source);
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
