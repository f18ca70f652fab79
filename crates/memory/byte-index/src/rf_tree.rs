//! RF-tree over byte strings: all that lists pages is cached on the compute node, and shared by its
//! sessions (the paper's search layer cache, SLC).
//!
//! # Rules
//!
//! - **BT1.** What lists the pages of a table is a table of byte strings by itself, its *listing*,
//!   with the protocol of every table (D1 to D9, BP1 to BP6). A record of it is an *entry*: the
//!   least key that a page can have, and where the page is, with the generation of the load that
//!   wrote it, or 0. An entry is a hint.
//! - **BT2.** An entry counts if its generation is 0 or that of the table's root. A load lists its
//!   pages before it commits (B3), and one load of a table commits at the most. So no entry that
//!   counts names a page of a load that has failed, which is free for others.
//! - **BT3.** Who has split a page, or replaced it (BP6), lists the new ones when that is
//!   committed. An entry that is late may take the place of a newer one: it then names a page that
//!   is retired, whose link leads on, as it does where who has replaced a page dies before. Who
//!   dies before leaves them to be found by links. When a session takes a newer cache it lists what
//!   it has met and the cache does not have, unless something that counts is listed there by then.
//!   That also mends what one of two loads at once has overwritten of the other's.
//! - **BT4.** A cache is the listing as it was read once, from one end to the other. It is never
//!   changed, only replaced as a whole: when one lookup has followed more links than a session
//!   allows, or a session has met so many pages beside it that this is worth it. Where the listing
//!   has less than what the load has written, or a part of it is lost with its node, the models of
//!   the table's root are what leads to pages.
//! - **BT5.** A listing has the number behind its table's, and a name that nobody can give. Its
//!   entry in the catalog is written before the table's and dropped with it, under the catalog's
//!   lock (C1). Who finds a listing without its table when it has that lock drops it.
//!
//! Generations have 16 bits. Entries of a load that has failed would count again only behind a load
//! of the same table that draws the same number, after 65,535 others of the pool.
//!
//! *A page that counts is a page.* Pages that splits made, and those of a load that has committed,
//! stay what they are until the table is dropped, retired or not; and who has a cache of a dropped
//! table follows (P4) before its memory is used by others. So a hint may be old, but whatever is
//! read or locked by it is a page of the table.

use core::cmp::Ordering;

use farleaf_index::directory::Model;
use farleaf_model::strings::{FrontCodedSegment, Residuals, StringSegment, byte_shift};
use farleaf_page::KEY_SIZE_BYTES_MAX;
use farleaf_region::PoolLayout;
use farleaf_types::{RemoteAddr, TableId};

use crate::directory::{ByteDirectory, Run, can_be_page};

/// A session that has met so many pages beside a cache wants a newer one, if they are an eighth of
/// what that lists.
const MET_COUNT_MIN: usize = 1024;
const PAGES_PER_MET: usize = 8;

/// A page, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPage {
    /// The least key that it can have.
    pub low: Vec<u8>,
    /// Where it is.
    pub addr: RemoteAddr,
}

impl ListedPage {
    /// What stands in the listing under its least key (BT1): 8 bytes.
    pub fn value(&self, generation: u16) -> [u8; 8] {
        self.addr.with_spare(generation).word().to_le_bytes()
    }

    /// Whether there can be an entry of it: not of one that begins right behind the longest key.
    pub fn can_be_listed(&self) -> bool {
        self.low.len() <= KEY_SIZE_BYTES_MAX
    }

    /// Which page the value of an entry names, and of which generation that is; `None`: it is none.
    pub fn decode(value: &[u8]) -> Option<(RemoteAddr, u16)> {
        let word = u64::from_le_bytes(value.try_into().ok()?);
        let addr = RemoteAddr::from_word(word);
        Some((addr.place(), addr.spare()))
    }
}

/// BT2: whether an entry of this generation counts behind a root of that one.
pub const fn counts(generation: u16, of_root: u16) -> bool {
    generation == 0 || generation == of_root
}

/// BT5: the number of what lists the pages of a table.
pub const fn listing_of(table: TableId) -> TableId {
    TableId(table.0 + 1)
}

/// Puts a cache together of entries as they are read, in order.
#[derive(Debug)]
pub struct CacheBuilder<'a> {
    layout: &'a PoolLayout,
    trained: &'a ByteDirectory,
    trusts_all: bool,
    pages: Vec<ListedPage>,
}

impl<'a> CacheBuilder<'a> {
    /// A cache that has nothing but the first page yet, of a table whose root has `trained`.
    pub fn new(layout: &'a PoolLayout, trained: &'a ByteDirectory) -> Self {
        // What else is listed may be lost, or not there yet. The first page leads to all others.
        let first = ListedPage {
            low: Vec::new(),
            addr: trained.page(0).expect("there is a first page").addr,
        };
        Self {
            layout,
            trained,
            trusts_all: false,
            pages: vec![first],
        }
    }

    /// The same, of which every entry counts: wrong, and for the simulator to plant.
    #[must_use]
    pub fn trusting_all(self) -> Self {
        let trusts_all = true;
        Self { trusts_all, ..self }
    }

    /// The next entry: not below those before it. What is none, or does not count (BT2), is passed
    /// over.
    pub fn push(&mut self, low: &[u8], value: &[u8]) {
        let Some((addr, generation)) = ListedPage::decode(value) else {
            return;
        };
        let counts = counts(generation, self.trained.generation()) || self.trusts_all;
        if !counts || !can_be_page(self.layout, self.trained.geometry(), addr) {
            return;
        }
        let low = low.to_vec();
        let last = self.pages.last_mut().expect("there is the first page");
        match low.cmp(&last.low) {
            Ordering::Greater => self.pages.push(ListedPage { low, addr }),
            // The first page.
            Ordering::Equal => last.addr = addr,
            // What is damaged need not ascend.
            Ordering::Less => {}
        }
    }

    /// The cache. `None` (BT4): the listing lacks more of what the load has written than the few
    /// pages that cannot be listed; another load at once may have overwritten it before it failed.
    pub fn finish(self) -> Option<ByteDirectory> {
        if self.pages.len() * 8 < self.trained.page_count() as usize * 7 {
            return None;
        }
        let leaf_count_max = Model::TRAINED_LEAF_COUNT_MAX as usize;
        let (mut segments, mut runs) = (Vec::new(), Vec::new());
        for pages in self.pages.chunks(leaf_count_max) {
            let fences = pages.iter().map(|page| &*page.low);
            segments.push(StringSegment::FrontCoded(FrontCodedSegment::encode(fences)));
            let addresses: Box<[RemoteAddr]> = pages.iter().map(|page| page.addr).collect();
            runs.push(Run::listed(addresses, 0));
        }
        // Fences need none.
        let residuals = Residuals::Bytes {
            shift: byte_shift(1.0),
            residuals: Vec::new(),
        };
        let trained = (self.trained.generation(), self.trained.record_count());
        let geometry = self.trained.geometry();
        let built = ByteDirectory::build(geometry, trained, &segments, residuals, runs);
        Some(built.expect("fences ascend, and each segment has its run"))
    }
}

/// Whether a session has met so many pages beside a cache that a newer one is worth reading (BT4).
pub(crate) fn is_outgrown(met_count: usize, listed_count: u32) -> bool {
    met_count >= MET_COUNT_MIN && met_count * PAGES_PER_MET >= listed_count as usize
}
