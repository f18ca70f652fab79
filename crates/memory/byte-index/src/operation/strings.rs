//! Strings in value blocks that an answer depends on: long keys, fences and prefixes, and values.

use farleaf_block::Copied;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::Look;
use farleaf_page::format::{fetch, read_string};
use farleaf_page::{Found, Outside, PageBuffer, PageError, Reference, Value};
use farleaf_types::RemoteAddr;

use super::{ByteIndex, Sight};
use crate::error::ByteIndexError;

/// A page whose strings are not where it says has been changed since it was read; if it is so often
/// in a row, it is damaged.
const STALE_COUNT_MAX: u32 = 256;

/// What a page says of a key that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The record is in this slot.
    Record(usize),
    /// There is none.
    Absent,
    /// A string that it names is not there (any more): the page is stale (BV2).
    Stale,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// What a page that was copied tells about a key, whatever has to be read for it; torn if it
    /// is stale. One round trip for each string that has to be read.
    ///
    /// # Errors
    /// The page is damaged, or the fabric failed.
    pub(super) async fn look_surely(
        &self,
        batch: &mut Batch,
        (addr, page): (RemoteAddr, &PageBuffer),
        key: &[u8],
        outside: &mut Outside,
    ) -> Result<Look, ByteIndexError> {
        loop {
            match self.look_intact(page.image(), key, outside) {
                Sight::Look(look) => return Ok(look),
                Sight::Unsure(reference) => {
                    if !fetch(&self.access, batch, (addr, reference), outside).await? {
                        return Ok(Look::Torn);
                    }
                }
            }
        }
    }

    /// The slot of a key in a page that covers it.
    ///
    /// # Errors
    /// As for [`look_surely`](Self::look_surely).
    pub(super) async fn find_surely(
        &self,
        batch: &mut Batch,
        (addr, page): (RemoteAddr, &PageBuffer),
        key: &[u8],
        outside: &mut Outside,
    ) -> Result<Answer, ByteIndexError> {
        loop {
            match page.image().find(key, outside) {
                Found::Record(slot) => return Ok(Answer::Record(slot)),
                Found::Absent => return Ok(Answer::Absent),
                Found::Unsure(slots) => {
                    let keys = slots.iter();
                    let keys = keys.filter_map(|slot| page.image().key(slot).reference());
                    for reference in keys {
                        if !fetch(&self.access, batch, (addr, reference), outside).await? {
                            return Ok(Answer::Stale);
                        }
                    }
                }
            }
        }
    }

    /// Reads all keys and fences of a page that are outside; false if it is stale. A round trip for
    /// each.
    ///
    /// # Errors
    /// As for [`look_surely`](Self::look_surely).
    pub(super) async fn fetch_strings(
        &self,
        batch: &mut Batch,
        (addr, page): (RemoteAddr, &PageBuffer),
        outside: &mut Outside,
    ) -> Result<bool, ByteIndexError> {
        let image = page.image();
        let keys = image.slots().iter();
        let keys = keys.filter_map(|slot| image.key(slot).reference());
        let fences = [image.low().reference(), image.high().reference()];
        let strings: Vec<Reference> = keys.chain(fences.into_iter().flatten()).collect();
        for reference in strings {
            if outside.get(reference).is_err()
                && !fetch(&self.access, batch, (addr, reference), outside).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does what depends on strings outside as often as it asks for one; `None`: the page is stale.
    ///
    /// # Errors
    /// The page is damaged, or the fabric failed.
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
                    if !fetch(&self.access, batch, (addr, reference), outside).await? {
                        return Ok(None);
                    }
                }
                Err(_) => return Err(self.damaged(addr)),
            }
        }
    }

    /// [`with_strings`](Self::with_strings) of a page whose lock this session has: what it names is
    /// there.
    ///
    /// # Errors
    /// As for [`with_strings`](Self::with_strings).
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

    /// Counts a page that was stale once more; one that stays so is damaged.
    ///
    /// # Errors
    /// It is.
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

    /// Appends the value in a slot of a page that was copied; false if the page is stale. No round
    /// trip if it lies in the page, else one for each 256,000 bytes.
    ///
    /// # Errors
    /// As for [`look_surely`](Self::look_surely).
    pub(super) async fn read_value(
        &self,
        batch: &mut Batch,
        (addr, page): (RemoteAddr, &PageBuffer),
        slot: usize,
        to: &mut Vec<u8>,
    ) -> Result<bool, ByteIndexError> {
        match page.image().value(slot) {
            Value::Inline(value) => {
                to.extend_from_slice(value);
                Ok(true)
            }
            Value::Outside(reference) => {
                let copied = read_string(&self.access, batch, (addr, reference), to).await?;
                Ok(copied == Copied::Whole)
            }
        }
    }

    /// That a page says what cannot be.
    #[cold]
    pub(super) fn damaged(&self, addr: RemoteAddr) -> ByteIndexError {
        farleaf_leaf::LeafError::Damaged {
            addr,
            table: self.access.table,
        }
        .into()
    }
}
