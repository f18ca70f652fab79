//! Reads strings in value blocks that an answer depends on: long keys, fences and prefixes, and
//! values.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::blobs::CopyOutcome;
use farleaf_leaf::strings::format::{fetch, read_string};
use farleaf_leaf::strings::{Found, Outside, PageBuffer, PageError, Reference, Value};
use farleaf_leaf::words::LeafCheck;

use super::{ByteIndex, PageVerdict};
use crate::strings::error::ByteIndexError;

/// Maximum number of consecutive stale reads. A page whose referenced strings are gone has been
/// changed since it was read; after so many times in a row it counts as corrupted.
const STALE_COUNT_MAX: u32 = 256;

/// Answer of a page that covers a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotAnswer {
    /// The record is in this slot.
    Record(usize),
    /// There is no record.
    Absent,
    /// A string that the page names no longer exists: the page is stale.
    Stale,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Examines a copied page for a key, and reads all strings that this needs; returns torn if the
    /// page is stale. Costs one round trip for each string.
    ///
    /// # Errors
    /// The page is corrupted, or the fabric failed.
    pub(super) async fn look_with_strings(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        page: &PageBuffer,
        key: &[u8],
        outside: &mut Outside,
    ) -> Result<LeafCheck, ByteIndexError> {
        loop {
            match self.check_intact(page.image(), key, outside) {
                PageVerdict::LeafCheck(look) => return Ok(look),
                PageVerdict::Unsure(reference) => {
                    if !fetch(&self.access, batch, addr, reference, outside).await? {
                        return Ok(LeafCheck::Torn);
                    }
                }
            }
        }
    }

    /// Returns the slot of a key in a page that covers it.
    ///
    /// # Errors
    /// Fails like [`look_with_strings`](Self::look_with_strings).
    pub(super) async fn find_with_strings(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        page: &PageBuffer,
        key: &[u8],
        outside: &mut Outside,
    ) -> Result<SlotAnswer, ByteIndexError> {
        loop {
            match page.image().find(key, outside) {
                Found::Record(slot) => return Ok(SlotAnswer::Record(slot)),
                Found::Absent => return Ok(SlotAnswer::Absent),
                Found::Unsure(slots) => {
                    let keys = slots.iter();
                    let keys = keys.filter_map(|slot| page.image().key(slot).reference());
                    for reference in keys {
                        if !fetch(&self.access, batch, addr, reference, outside).await? {
                            return Ok(SlotAnswer::Stale);
                        }
                    }
                }
            }
        }
    }

    /// Reads all keys and fences of a page that are stored outside; returns false if the page is
    /// stale. Costs a round trip for each.
    ///
    /// # Errors
    /// Fails like [`look_with_strings`](Self::look_with_strings).
    pub(super) async fn fetch_strings(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        page: &PageBuffer,
        outside: &mut Outside,
    ) -> Result<bool, ByteIndexError> {
        let image = page.image();
        let keys = image.slots().iter();
        let keys = keys.filter_map(|slot| image.key(slot).reference());
        let fences = [image.low().reference(), image.high().reference()];
        let strings: Vec<Reference> = keys.chain(fences.into_iter().flatten()).collect();
        for reference in strings {
            if outside.get(reference).is_err()
                && !fetch(&self.access, batch, addr, reference, outside).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Repeats a computation that depends on outside strings until it needs no further string;
    /// `None` if the page is stale.
    ///
    /// # Errors
    /// The page is corrupted, or the fabric failed.
    pub(super) async fn with_strings<R>(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        outside: &mut Outside,
        mut ask: impl FnMut(&Outside) -> Result<R, PageError>,
    ) -> Result<Option<R>, ByteIndexError> {
        loop {
            match ask(outside) {
                Ok(answer) => return Ok(Some(answer)),
                Err(PageError::Unread(reference)) => {
                    if !fetch(&self.access, batch, addr, reference, outside).await? {
                        return Ok(None);
                    }
                }
                Err(_) => return Err(self.damaged(addr)),
            }
        }
    }

    /// Does the same as [`with_strings`](Self::with_strings) for a page that this session has
    /// locked: all strings that it names exist.
    ///
    /// # Errors
    /// Fails like [`with_strings`](Self::with_strings).
    pub(super) async fn with_strings_locked<R>(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        outside: &mut Outside,
        ask: impl FnMut(&Outside) -> Result<R, PageError>,
    ) -> Result<R, ByteIndexError> {
        let answer = self.with_strings(batch, addr, outside, ask).await?;
        answer.ok_or_else(|| self.damaged(addr))
    }

    /// Counts a stale read of a page; a page that stays stale is corrupted.
    ///
    /// # Errors
    /// The page was stale too often in a row.
    pub(super) fn note_stale(
        &self,
        addr: RemoteAddr,
        stale_count: &mut u32,
    ) -> Result<(), ByteIndexError> {
        *stale_count += 1;
        if *stale_count > STALE_COUNT_MAX {
            return Err(self.damaged(addr));
        }
        Ok(())
    }

    /// Appends the value in a slot of a copied page; returns false if the page is stale. Costs no
    /// round trip if the value lies in the page, else one for each 256,000 bytes.
    ///
    /// # Errors
    /// Fails like [`look_with_strings`](Self::look_with_strings).
    pub(super) async fn read_value(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        page: &PageBuffer,
        slot: usize,
        to: &mut Vec<u8>,
    ) -> Result<bool, ByteIndexError> {
        match page.image().value(slot) {
            Value::Inline(value) => {
                to.extend_from_slice(value);
                Ok(true)
            }
            Value::Outside(reference) => {
                let copied = read_string(&self.access, batch, addr, reference, to).await?;
                Ok(copied == CopyOutcome::Whole)
            }
        }
    }

    /// Returns the error for a page with contradictory contents.
    #[cold]
    pub(super) fn damaged(&self, addr: RemoteAddr) -> ByteIndexError {
        farleaf_leaf::words::LeafError::Damaged {
            addr,
            table: self.access.table,
        }
        .into()
    }
}
