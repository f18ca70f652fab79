//! Reads keys: one page per key when the hint is right, and a value block if the value is large.

use crate::hint::Hint;
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck, ReadSlot};
use farleaf_leaf::strings::format::read_string;
use farleaf_leaf::strings::{Found, Outside, PageBuffer, PageImage, Reference, Value};
use farleaf_leaf::words::{LeafCheck, SearchPath};

use super::strings::SlotAnswer;
use super::{ByteIndex, NOTHING_OUTSIDE, PageVerdict, check_key, low_of};
use crate::strings::directory::KeyLocation;
use crate::strings::error::ByteIndexError;

/// Maximum number of keys per batch.
const MULTI_GET_BATCH_COUNT: usize = 256;

/// Contents of a page for a key.
enum KeyInPage<'b> {
    /// The value, stored in the page.
    Inline(&'b [u8]),
    /// The value is stored outside the page.
    Outside(Reference),
    /// The page has no record of the key.
    Absent,
    /// This page does not suffice.
    More(Hint, PageVerdict),
}

/// Page that covers a key.
pub(super) struct CoveringPage {
    pub(super) hint: Hint,
    pub(super) page: PageBuffer,
    /// Strings outside the page that were read.
    pub(super) outside: Outside,
}

/// READs of the one or two pages that may cover a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedPlace {
    place: KeyLocation,
    page: ReadSlot,
    also: Option<ReadSlot>,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Passes the value of a key to `read`, or `None` if there is none, and returns the result of
    /// `read`. Costs one round trip when the hint is right; one more if the value is outside its
    /// page, and one for each 256,000 bytes of it after the first. A value stored in its page is
    /// not copied, except by `read`.
    ///
    /// # Errors
    /// The key is too long; the table was dropped or is corrupted; or the fabric failed.
    pub async fn get<R>(
        &self,
        batch: &mut Batch,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, ByteIndexError> {
        check_key(key)?;
        // Does the same as `place`, without a nested future.
        let located = self.state.layer().locate(key);
        let place = match located {
            Ok(place) => place,
            Err(telling) => Box::pin(self.place_by_part(batch, key, telling)).await?,
        };
        batch.clear();
        let posted = self.post_place(batch, place);
        self.access.endpoint.execute(batch).await?;
        let (hint, more) = match self.see(batch, posted, key) {
            KeyInPage::Inline(value) => return Ok(read(Some(value))),
            KeyInPage::Absent => return Ok(read(None)),
            KeyInPage::Outside(reference) => {
                let mut value = Vec::new();
                let addr = posted.place.page.addr;
                let copied = read_string(&self.access, batch, addr, reference, &mut value).await?;
                if copied == farleaf_leaf::blobs::CopyOutcome::Whole {
                    return Ok(read(Some(&value)));
                }
                (posted.place.page, PageVerdict::LeafCheck(LeafCheck::Torn))
            }
            KeyInPage::More(hint, more) => (hint, more),
        };
        let mut value = Vec::new();
        let slowly = Box::pin(self.get_slowly(batch, key, hint, more, &mut value));
        let is_there = slowly.await?;
        Ok(read(is_there.then_some(&*value)))
    }

    /// Reads the values of many keys. Calls `read` once for each, with the index of the key and its
    /// value; `None` if the key is absent. Costs one round trip per 256 keys, and one for the
    /// values outside pages, when the hints are right.
    ///
    /// # Errors
    /// Fails like [`get`](Self::get).
    pub async fn multi_get<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        mut read: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), ByteIndexError> {
        for key in keys {
            check_key(key.as_ref())?;
        }
        for (part, keys) in keys.chunks(MULTI_GET_BATCH_COUNT).enumerate() {
            let first = part * MULTI_GET_BATCH_COUNT;
            let places = self.places(batch, keys).await?;
            batch.clear();
            let posted = places.into_iter();
            let posted = posted.map(|place| self.post_place(batch, place));
            let posted: Vec<PostedPlace> = posted.collect();
            self.access.endpoint.execute(batch).await?;
            let (mut outside, mut more) = (Vec::new(), Vec::new());
            for (index, (key, posted)) in keys.iter().zip(&posted).enumerate() {
                match self.see(batch, *posted, key.as_ref()) {
                    KeyInPage::Inline(value) => read(first + index, Some(value)),
                    KeyInPage::Absent => read(first + index, None),
                    KeyInPage::Outside(reference) => outside.push((index, reference)),
                    KeyInPage::More(hint, sight) => more.push((index, hint, sight)),
                }
            }
            let addr_of = |index: usize| posted[index].place.page.addr;
            let strings: Vec<_> = outside
                .iter()
                .map(|(index, reference)| (addr_of(*index), *reference))
                .collect();
            let values = self.read_strings(batch, &strings).await?;
            for ((index, _), value) in outside.into_iter().zip(values) {
                if let Some(value) = value {
                    read(first + index, Some(&value));
                } else {
                    let hint = posted[index].place.page;
                    more.push((index, hint, PageVerdict::LeafCheck(LeafCheck::Torn)));
                }
            }
            for (index, hint, sight) in more {
                let mut value = Vec::new();
                let key = keys[index].as_ref();
                let slowly = Box::pin(self.get_slowly(batch, key, hint, sight, &mut value));
                let is_there = slowly.await?;
                read(first + index, is_there.then_some(&*value));
            }
        }
        Ok(())
    }

    /// Adds the READs of the one or two pages that may cover a key.
    pub(super) fn post_place(&self, batch: &mut Batch, place: KeyLocation) -> PostedPlace {
        PostedPlace {
            place,
            page: self.post_page(batch, place.page.addr),
            also: place.also.map(|also| self.post_page(batch, also.addr)),
        }
    }

    fn see<'b>(&self, batch: &'b Batch, posted: PostedPlace, key: &[u8]) -> KeyInPage<'b> {
        let mut hint = posted.place.page;
        let mut image = self.image(batch, posted.page);
        let mut sight = self.look(image, hint.addr, key);
        if let (Some(also), Some(read)) = (posted.place.also, posted.also)
            && sight != PageVerdict::LeafCheck(LeafCheck::Here)
        {
            let other = self.image(batch, read);
            let other_sight = self.look(other, also.addr, key);
            // A key to the right of the left page and to the left of the right page is between
            // them, so continue from the left page.
            if !matches!(
                other_sight,
                PageVerdict::LeafCheck(LeafCheck::Left | LeafCheck::Torn)
            ) {
                (hint, image, sight) = (also, other, other_sight);
            }
        }
        match sight {
            PageVerdict::LeafCheck(LeafCheck::Here) => see_in(image, hint, key),
            PageVerdict::LeafCheck(LeafCheck::Torn)
                if self.skips_check(ProtocolCheck::TornIsNotAbsent) =>
            {
                KeyInPage::Absent
            }
            more => KeyInPage::More(hint, more),
        }
    }

    /// Completes a get that the first page does not answer; returns whether the key exists.
    #[cold]
    async fn get_slowly(
        &self,
        batch: &mut Batch,
        key: &[u8],
        mut hint: Hint,
        mut sight: PageVerdict,
        value: &mut Vec<u8>,
    ) -> Result<bool, ByteIndexError> {
        let mut stale_count = 0;
        loop {
            let covering = self.walk(batch, key, hint, sight).await?;
            let (page, mut outside) = (covering.page, covering.outside);
            hint = covering.hint;
            let found = self.find_with_strings(batch, hint.addr, &page, key, &mut outside);
            let is_whole = match found.await? {
                SlotAnswer::Absent => return Ok(false),
                SlotAnswer::Record(slot) => {
                    self.read_value(batch, hint.addr, &page, slot, value)
                        .await?
                }
                SlotAnswer::Stale => false,
            };
            if is_whole {
                return Ok(true);
            }
            value.clear();
            self.note_stale(hint.addr, &mut stale_count)?;
            // The page has changed in the meantime. Read it again for the current references.
            sight = PageVerdict::LeafCheck(LeafCheck::Torn);
        }
    }

    /// Walks from an examined page to the one that covers the key; records the pages found in the
    /// layer.
    ///
    /// Dropping the future while it reads a page under its lock may leave the page locked; the
    /// session is then broken and must be closed.
    ///
    /// # Errors
    /// Fails like [`get`](Self::get).
    pub(super) async fn walk(
        &self,
        batch: &mut Batch,
        key: &[u8],
        mut hint: Hint,
        mut sight: PageVerdict,
    ) -> Result<CoveringPage, ByteIndexError> {
        self.hold_key(batch, key).await?;
        let mut course = SearchPath::<Vec<u8>>::default();
        let (mut low, mut torn_count, mut stale_count) = (None, 0, 0);
        let (mut announced, mut link_count) = (None, 0);
        loop {
            let mut outside = Outside::new();
            // A hint that led too far left is stale: others have split pages. Read the model's
            // announcement counter along the way.
            let is_asked =
                announced.is_none() && matches!(sight, PageVerdict::LeafCheck(LeafCheck::Right(_)));
            let page = match sight {
                PageVerdict::LeafCheck(LeafCheck::Torn) => {
                    let broken = &self.state.broken;
                    let after = self
                        .access
                        .after_torn(batch, hint.addr, &mut torn_count, broken);
                    after.await?
                }
                // The image is not kept. The page is read again, with the strings that it needs.
                PageVerdict::Unsure(_) | PageVerdict::LeafCheck(LeafCheck::Here) => None,
                PageVerdict::LeafCheck(look) => {
                    link_count +=
                        u32::from(matches!(look, LeafCheck::Right(_) | LeafCheck::Retired(_)));
                    hint = self.go_on(batch, &mut course, key, hint, low.take(), look)?;
                    torn_count = 0;
                    None
                }
            };
            let page = if let Some(page) = page {
                page
            } else {
                batch.clear();
                let read = self.post_page(batch, hint.addr);
                let asked = is_asked.then(|| self.ask(batch, hint.parent)).flatten();
                self.access.endpoint.execute(batch).await?;
                if let Some((announcement, asked)) = asked {
                    announced = Some((announcement, asked.answer(batch)));
                }
                let image = self.image(batch, read);
                if !self.access.is_intact(image.words(), hint.addr) {
                    sight = PageVerdict::LeafCheck(LeafCheck::Torn);
                    continue;
                }
                PageBuffer::copy_of(image)
            };
            let look = self
                .look_with_strings(batch, hint.addr, &page, key, &mut outside)
                .await?;
            if look == LeafCheck::Torn {
                self.note_stale(hint.addr, &mut stale_count)?;
            }
            low = low_of(page.image());
            match (look, &low) {
                (LeafCheck::Here, low) => {
                    if let Some(low) = low {
                        self.learn(low, hint);
                    }
                    self.state.note_links(link_count);
                    if let Some((announcement, announced)) = announced {
                        Box::pin(self.catch_up(batch, announcement, announced)).await?;
                    }
                    return Ok(CoveringPage {
                        hint,
                        page,
                        outside,
                    });
                }
                (LeafCheck::Right(_) | LeafCheck::Left, Some(low))
                    if !page.image().is_retired() =>
                {
                    self.learn(low, hint);
                }
                _ => {}
            }
            sight = PageVerdict::LeafCheck(look);
        }
    }

    /// Reads strings from value blocks; each is `None` if it no longer exists. Costs one round trip
    /// for all strings in pieces of chunks.
    ///
    /// # Errors
    /// A page is corrupted, or the fabric failed.
    pub(super) async fn read_strings(
        &self,
        batch: &mut Batch,
        strings: &[(RemoteAddr, Reference)],
    ) -> Result<Vec<Option<Vec<u8>>>, ByteIndexError> {
        let blocks = self.blocks();
        batch.clear();
        let mut posted = Vec::with_capacity(strings.len());
        for (addr, reference) in strings {
            let pointer = farleaf_leaf::blobs::FatPointer::from_word(reference.pointer.word());
            let pointer = pointer.ok_or_else(|| self.damaged(*addr))?;
            posted.push(blocks.post_read(batch, pointer, reference.size_bytes)?);
        }
        if !batch.is_empty() {
            self.access.endpoint.execute(batch).await?;
        }
        let mut values = Vec::with_capacity(strings.len());
        for ((_, reference), posted) in strings.iter().zip(&posted) {
            let mut value = Vec::new();
            let copied = posted.map(|it| blocks.copy(batch, it, reference.checksum, &mut value));
            values.push((copied, value));
        }
        let mut whole = Vec::with_capacity(strings.len());
        for ((addr, reference), (copied, mut value)) in strings.iter().zip(values) {
            let copied = match copied {
                Some(copied) => copied,
                None => read_string(&self.access, batch, *addr, *reference, &mut value).await?,
            };
            whole.push((copied == farleaf_leaf::blobs::CopyOutcome::Whole).then_some(value));
        }
        Ok(whole)
    }
}

/// Returns what a page that covers a key contains for it.
fn see_in<'b>(image: PageImage<'b>, hint: Hint, key: &[u8]) -> KeyInPage<'b> {
    match image.find(key, NOTHING_OUTSIDE) {
        Found::Absent => KeyInPage::Absent,
        Found::Record(slot) => match image.value(slot) {
            Value::Inline(value) => KeyInPage::Inline(value),
            Value::Outside(reference) => KeyInPage::Outside(reference),
        },
        Found::Unsure(_) => KeyInPage::More(hint, PageVerdict::LeafCheck(LeafCheck::Here)),
    }
}
