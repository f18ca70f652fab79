//! Chooses the pages that new models list.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::collections::BTreeSet;

use farleaf_fabric::Endpoint;
use farleaf_leaf::strings::format::PageAccess;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::{ByteTableView, RetrainRanges};
use crate::strings::error::ByteIndexError;
use crate::strings::operation::WalkedPage;

/// Shares of listed pages, one in so many: the first for which there is free space applies.
const SHARES: [u64; 4] = [1, 4, 16, 64];

/// Choice of the pages that new models list.
#[derive(Debug)]
pub(super) struct ListedShare {
    /// One page in so many is listed.
    share: Cell<u64>,
    /// Shared chunks, from which splits take pages: only these are used whether a snapshot names
    /// their pages or not.
    shared: RefCell<BTreeSet<ChunkIndex>>,
}

impl Default for ListedShare {
    fn default() -> Self {
        Self {
            share: Cell::new(1),
            shared: RefCell::default(),
        }
    }
}

impl ListedShare {
    /// Returns the listed pages by their numbers: the first one, all pages in runs, and one in so
    /// many of the others.
    pub(super) fn listed<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
        pages: &[WalkedPage],
    ) -> Vec<usize> {
        let (share, shared) = (self.share.get() as usize, self.shared.borrow());
        let (mut listed, mut next) = (Vec::new(), 0);
        for (number, page) in pages.iter().enumerate() {
            let chunk = access.layout.chunk_of(page.addr);
            let is_shared = chunk.is_some_and(|chunk| shared.contains(&chunk));
            if number >= next || !is_shared {
                listed.push(number);
                next = number + share;
            }
        }
        listed
    }
}

impl<E: Endpoint> ByteTableView<'_, E> {
    /// Claims chunks for the next snapshot, sized by the pages counted. Without them, merging would
    /// retire pages that are not reused, and new pages would take all free space. Until the
    /// snapshot is written, the chunks carry the old generation.
    pub(super) async fn hold_space(&self, stretches: &RetrainRanges) -> Result<(), ByteIndexError> {
        let (access, contents) = (&self.access, &self.contents);
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let allocator = allocator.taking_reserve();
        let mut last_chunk_count = u64::MAX;
        let mut full = None;
        for share in SHARES {
            let chunk_count = self.chunk_count(stretches, share);
            if chunk_count == last_chunk_count {
                continue;
            }
            last_chunk_count = chunk_count;
            let purpose = ChunkPurpose::Snapshot {
                generation: contents.generation,
            };
            match allocator.claim(chunk_count, purpose, access.table).await {
                Ok(snapshot_range) => {
                    stretches.hold(snapshot_range, contents.generation);
                    if share > 1 {
                        self.list_one_in(stretches, share).await?;
                    }
                    return Ok(());
                }
                Err(error @ PoolError::Full { .. }) => full = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(full.expect("it was tried").into())
    }

    /// Makes new models list one in `share` of the pages that may be omitted. Reads the chunk
    /// table.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn list_one_in(
        &self,
        stretches: &RetrainRanges,
        share: u64,
    ) -> Result<(), ByteIndexError> {
        let access = &self.access;
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let chunks = allocator.entries().await?;
        let shared = chunks.iter().filter(|(_, chunk)| {
            matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }))
                && chunk.table == access.table
        });
        let listing = &stretches.listing;
        *listing.shared.borrow_mut() = shared.map(|(index, _)| index).collect();
        listing.share.set(share);
        Ok(())
    }

    /// Returns the chunks of a snapshot in which new models list one page in `share`.
    fn chunk_count(&self, stretches: &RetrainRanges, share: u64) -> u64 {
        let pages_of = |models: Range<usize>| -> u64 {
            let models = self.counted[models].iter();
            let counts =
                models.map(|model| u64::from(model.page_count).saturating_add(model.splits));
            counts.fold(0, u64::saturating_add)
        };
        let all = pages_of(0..self.counted.len());
        let due = stretches
            .ranges
            .iter()
            .map(|(range, _)| pages_of(range.clone()));
        let due = due.fold(0, u64::saturating_add);
        let listed = all - due + due.div_ceil(share);
        self.contents
            .chunk_count_listed(self.access.geometry, listed)
    }
}

impl RetrainRanges {
    fn hold(&self, snapshot_range: ChunkRange, generation: u16) {
        self.snapshot_range.set(Some((snapshot_range, generation)));
        self.leave_space(true);
    }
}
