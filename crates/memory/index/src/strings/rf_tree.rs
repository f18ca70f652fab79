//! RF-tree over byte strings: compute nodes cache the list of all pages, and the sessions of a
//! process share the cache (the paper's search layer cache, SLC).
//!
//! # Listing
//!
//! The pages of a table are listed in another table of byte strings, its *listing*, under the
//! protocol of every table (LEAF-1 to LEAF-9, and the page protocol in
//! docs/explanation/byte-tables.md). A record of the listing is an *entry*: the smallest key that a
//! page can contain, the page's address, and the generation of the load that wrote it, or 0. An
//! entry is a hint.
//!
//! - **Validity.** An entry is valid if its generation is 0 or that of the table's root. A load
//!   lists its pages before it commits, and at most one load of a table commits. So a valid entry
//!   never names a page of a failed load, whose memory others may use.
//! - **Updates.** A session that splits or replaces a page lists the new pages after the commit. A
//!   late entry may overwrite a newer one. It then names a retired page, whose link leads on; the
//!   same holds if a session dies after it replaced a page and before it listed the new ones. Pages
//!   that remain unlisted are found by links. A session that takes a newer cache lists the pages
//!   that it found and that the cache lacks, unless a valid entry is listed there by then. This
//!   also repairs entries that one of two concurrent loads has overwritten.
//! - **Cache.** A cache is the listing as read once, from one end to the other. It is never
//!   modified, only replaced as a whole. A session replaces it after a lookup followed more links
//!   than allowed, or after it found enough pages that the cache lacks. If the listing lacks pages
//!   of the load, or if part of it is lost with its node, the models of the table's root lead to
//!   pages instead.
//! - **Catalog.** A listing has the number after its table's, and a name that users cannot assign.
//!   Its catalog entry is written before the table's and dropped with it, under the catalog's lock.
//!   A holder of that lock that finds a listing without its table drops the listing.
//!
//! Generations have 16 bits. Entries of a failed load would become valid again only after a load of
//! the same table drew the same number, after 65,535 others in the pool.
//!
//! *Valid entries name pages.* Pages that splits or a committed load created remain pages of the
//! table until it is dropped, retired or not. Holders of a dropped table's cache notice the drop
//! before others use its memory. So a hint may be old, but whatever is read or locked by it is a
//! page of the table.

use core::cmp::Ordering;

use crate::directory::Model;
use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use farleaf_base::{RemoteAddr, TableId};
use farleaf_model::strings::{FrontCodedSegment, Residuals, StringSegment, byte_shift};
use farleaf_pool::PoolLayout;

use crate::strings::directory::{ByteDirectory, Run, can_be_page};

/// A session needs at least so many pages that its cache lacks before it wants a newer cache; they
/// must also be an eighth of the listed pages.
const MET_COUNT_MIN: usize = 1024;
const PAGES_PER_MET: usize = 8;

/// Page and the start of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPage {
    /// Smallest key that the page can contain.
    pub low: Vec<u8>,
    /// Address of the page.
    pub addr: RemoteAddr,
}

impl ListedPage {
    /// Returns the value of the page's entry in the listing: 8 bytes.
    pub fn value(&self, generation: u16) -> [u8; 8] {
        self.addr.with_spare(generation).word().to_le_bytes()
    }

    /// Returns whether the page can have an entry. A page that begins right after the longest key
    /// cannot.
    pub fn can_be_listed(&self) -> bool {
        self.low.len() <= KEY_SIZE_BYTES_MAX
    }

    /// Decodes the value of an entry into page address and generation; `None` if it is invalid.
    pub fn decode(value: &[u8]) -> Option<(RemoteAddr, u16)> {
        let word = u64::from_le_bytes(value.try_into().ok()?);
        let addr = RemoteAddr::from_word(word);
        Some((addr.place(), addr.spare()))
    }
}

/// Returns whether an entry of this generation is valid under a root of generation `of_root`.
pub const fn counts(generation: u16, of_root: u16) -> bool {
    generation == 0 || generation == of_root
}

/// Returns the number of a table's listing.
pub const fn listing_of(table: TableId) -> TableId {
    TableId(table.0 + 1)
}

/// Builds a cache from entries as they are read, in order.
#[derive(Debug)]
pub struct CacheBuilder<'a> {
    layout: &'a PoolLayout,
    trained: &'a ByteDirectory,
    trusts_all: bool,
    pages: Vec<ListedPage>,
}

impl<'a> CacheBuilder<'a> {
    /// Creates a cache with only the first page, for a table whose root has the directory
    /// `trained`.
    pub fn new(layout: &'a PoolLayout, trained: &'a ByteDirectory) -> Self {
        // Other entries may be lost or not written yet. The first page leads to all others.
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

    /// Treats every entry as valid. This is wrong: a bug that the simulator plants.
    #[must_use]
    pub fn trusting_all(self) -> Self {
        let trusts_all = true;
        Self { trusts_all, ..self }
    }

    /// Adds the next entry, which is not below the previous ones. Skips invalid entries.
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
            // Entries of a corrupted listing need not ascend.
            Ordering::Less => {}
        }
    }

    /// Returns the cache. `None` if the listing lacks more pages of the load than the few that
    /// cannot be listed; a concurrent load may have overwritten entries before it failed.
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
        // Fences need no residuals.
        let residuals = Residuals::Bytes {
            shift: byte_shift(1.0),
            residuals: Vec::new(),
        };
        let (geometry, generation) = (self.trained.geometry(), self.trained.generation());
        let count = self.trained.record_count();
        let built = ByteDirectory::build(geometry, generation, count, &segments, residuals, runs);
        Some(built.expect("fences ascend, and each segment has its run"))
    }
}

/// Returns whether a session has found enough pages that a cache lacks for reading a newer one to
/// pay off.
pub(crate) fn is_outgrown(met_count: usize, listed_count: u32) -> bool {
    met_count >= MET_COUNT_MIN && met_count * PAGES_PER_MET >= listed_count as usize
}
