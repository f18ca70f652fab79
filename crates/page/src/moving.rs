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
