//! Reading of strings.

use farleaf_base::{WordAddr, crc32c_bytes};
use farleaf_fabric::{Batch, BatchError, Endpoint, ReadSlot};

use crate::blobs::access::BlockAccess;
use crate::blobs::class::SizeClass;
use crate::blobs::error::BlockError;
use crate::blobs::header::BODY_WORD;
use crate::blobs::large::{TRANSFER_SIZE_BYTES, TRANSFER_SIZE_WORDS};
use crate::blobs::list::{self, ListPart};
use crate::blobs::pointer::{FatPointer, Form};
use crate::blobs::words::{extend_bytes, word_count};

/// Words of a list that are read first: the number of parts, and 63 parts.
const FIRST_LIST_WORD_COUNT: u64 = 64;

/// Whether a string is the one that a page refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CopyOutcome {
    /// The string matches.
    Whole,
    /// The checksum does not match: the page is stale and must be read again.
    Changed,
}

/// String that a batch reads.
#[derive(Clone, Copy, Debug)]
pub struct PostedString {
    read: ReadSlot,
    size_bytes: u32,
}

impl<E: Endpoint> BlockAccess<'_, E> {
    /// Posts the READ of a string in a piece: one verb for the string's words. Returns `None`,
    /// without posting, if the string takes more than a piece; then use [`read`](Self::read).
    ///
    /// # Errors
    /// No block of that size can be there; nothing has been posted.
    pub fn post_read(
        &self,
        batch: &mut Batch,
        pointer: FatPointer,
        size_bytes: u32,
    ) -> Result<Option<PostedString>, BlockError> {
        self.site(pointer, size_bytes)?;
        if !matches!(pointer.form(), Form::Piece(_)) {
            return Ok(None);
        }
        let string = pointer.place().word_at(BODY_WORD);
        let read = batch.read(string, word_count(size_bytes as usize));
        Ok(Some(PostedString { read, size_bytes }))
    }

    /// Appends a posted string to a buffer when the batch is complete, if its checksum matches the
    /// reference. Otherwise the buffer is unchanged.
    pub fn copy(
        &self,
        batch: &Batch,
        string: PostedString,
        crc: u32,
        to: &mut Vec<u8>,
    ) -> CopyOutcome {
        let start = to.len();
        extend_bytes(to, batch.words(string.read), string.size_bytes as usize);
        self.judge(start, crc, to)
    }

    fn judge(&self, start: usize, crc: u32, to: &mut Vec<u8>) -> CopyOutcome {
        if crc32c_bytes(&to[start..]) == crc {
            return CopyOutcome::Whole;
        }
        to.truncate(start);
        self.endpoint.note_stale_string();
        CopyOutcome::Changed
    }

    /// Appends a string to a buffer, for any form of block. The buffer is unchanged if the string
    /// has changed. Costs a round trip for each 256,000 bytes and for each part of a list; one more
    /// for a list, or two if it has more than 63 parts.
    ///
    /// # Errors
    /// No block of that size can be there, or the fabric failed.
    pub async fn read(
        &self,
        batch: &mut Batch,
        pointer: FatPointer,
        size_bytes: u32,
        crc: u32,
        to: &mut Vec<u8>,
    ) -> Result<CopyOutcome, BlockError> {
        self.site(pointer, size_bytes)?;
        let start = to.len();
        let string = pointer.place().word_at(BODY_WORD);
        let mut left = size_bytes as usize;
        match pointer.form() {
            Form::Piece(_) | Form::Extent => self.read_run(batch, string, left, to).await?,
            Form::List(class) => {
                let Some(parts) = self.parts_to_read(batch, pointer, class, left).await? else {
                    self.endpoint.note_stale_string();
                    return Ok(CopyOutcome::Changed);
                };
                for part in parts {
                    let size = left.min(part.capacity_bytes());
                    let string = part.place.word_at(BODY_WORD);
                    if let Err(error) = self.read_run(batch, string, size, to).await {
                        to.truncate(start);
                        return Err(error.into());
                    }
                    left -= size;
                }
            }
        }
        Ok(self.judge(start, crc, to))
    }

    /// Appends adjacent bytes.
    async fn read_run(
        &self,
        batch: &mut Batch,
        from: WordAddr,
        size_bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), BatchError> {
        let (start, mut at, mut left) = (to.len(), from, size_bytes);
        to.reserve(size_bytes + 7);
        while left > 0 {
            let size = left.min(TRANSFER_SIZE_BYTES);
            batch.clear();
            let read = batch.read(at, word_count(size));
            if let Err(error) = self.endpoint.execute(batch).await {
                to.truncate(start);
                return Err(error);
            }
            extend_bytes(to, batch.words(read), size);
            at = at.offset(TRANSFER_SIZE_WORDS as u64);
            left -= size;
        }
        Ok(())
    }

    /// Returns the parts of a list that a page refers to; `None` if the list of this string is not
    /// there any more.
    async fn parts_to_read(
        &self,
        batch: &mut Batch,
        pointer: FatPointer,
        class: SizeClass,
        size_bytes: usize,
    ) -> Result<Option<Vec<ListPart>>, BatchError> {
        let body = pointer.place().word_at(BODY_WORD);
        let capacity_words = class.size_words() - BODY_WORD;
        let first_count = FIRST_LIST_WORD_COUNT.min(capacity_words);
        batch.clear();
        let read = batch.read(body, first_count as usize);
        self.endpoint.execute(batch).await?;
        let mut words = batch.words(read).to_vec();
        let Some(count) = list::body_word_count(words[0]) else {
            return Ok(None);
        };
        if count as u64 > capacity_words {
            return Ok(None);
        }
        if let Some(more) = count.checked_sub(words.len()).filter(|more| *more > 0) {
            batch.clear();
            let read = batch.read(body.offset(first_count), more);
            self.endpoint.execute(batch).await?;
            words.extend(batch.words(read));
        }
        words.truncate(count);
        let parts = list::decode(&words, size_bytes);
        Ok(parts.filter(|parts| parts.iter().all(|part| part.is_possible(self.layout))))
    }
}
