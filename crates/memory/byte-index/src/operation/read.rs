//! Reading keys: one page per key when the hint is right, and a value block if the value is large.

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck, ReadSlot};
use farleaf_index::hint::Hint;
use farleaf_leaf::{Course, Look};
use farleaf_page::format::read_string;
use farleaf_page::{Found, Outside, PageBuffer, PageImage, Reference, Value};
use farleaf_types::RemoteAddr;

use super::strings::Answer;
use super::{ByteIndex, NOTHING_OUTSIDE, Sight, check_key, low_of};
use crate::directory::Place;
use crate::error::ByteIndexError;

/// Keys that go into one batch at the most.
const MULTI_GET_BATCH_COUNT: usize = 256;

/// What a page that was just read says of a key.
enum Seen<'b> {
    /// The value, in the page.
    Inline(&'b [u8]),
    /// The value is outside.
    Outside(Reference),
    /// There is no record.
    Absent,
    /// It takes more than this look.
    More(Hint, Sight),
}

/// A page that covers a key.
pub(super) struct Arrival {
    pub(super) hint: Hint,
    pub(super) page: PageBuffer,
    /// What was read of strings outside it.
    pub(super) outside: Outside,
}

/// The READs of the one or two pages that a key may be in.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedPlace {
    place: Place,
    page: ReadSlot,
    also: Option<ReadSlot>,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Hands the value of a key to `read`, or `None` if there is none, and returns what that
    /// returns. One round trip when the hint is right; one more if the value is outside, and one
    /// for each 256,000 bytes of it after the first. Of a value that lies in the page nothing is
    /// copied but by `read`.
    ///
    /// # Errors
    /// The key is too long; the table was dropped or is damaged; or the fabric failed.
    pub async fn get<R>(
        &self,
        batch: &mut Batch,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, ByteIndexError> {
        check_key(key)?;
        // As `place` does, without a future inside this one.
        let located = self.state.layer().locate(key);
        let place = match located {
            Ok(place) => place,
            Err(telling) => Box::pin(self.place_by_part(batch, key, telling)).await?,
        };
        batch.clear();
        let posted = self.post_place(batch, place);
        self.access.endpoint.execute(batch).await?;
        let (hint, more) = match self.see(batch, posted, key) {
            Seen::Inline(value) => return Ok(read(Some(value))),
            Seen::Absent => return Ok(read(None)),
            Seen::Outside(reference) => {
                let mut value = Vec::new();
                let at = (posted.place.page.addr, reference);
                let copied = read_string(&self.access, batch, at, &mut value).await?;
                if copied == farleaf_block::Copied::Whole {
                    return Ok(read(Some(&value)));
                }
                (posted.place.page, Sight::Look(Look::Torn))
            }
            Seen::More(hint, more) => (hint, more),
        };
        let mut value = Vec::new();
        let slowly = Box::pin(self.get_slowly(batch, key, (hint, more), &mut value));
        let is_there = slowly.await?;
        Ok(read(is_there.then_some(&*value)))
    }

    /// The values of many keys, in their order, appended to `values` one after the other: where
    /// each ends, and whether it is there. One round trip per 256 keys, and one for the values that
    /// are outside, when the hints are right.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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
                    Seen::Inline(value) => read(first + index, Some(value)),
                    Seen::Absent => read(first + index, None),
                    Seen::Outside(reference) => outside.push((index, reference)),
                    Seen::More(hint, sight) => more.push((index, hint, sight)),
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
                    more.push((index, hint, Sight::Look(Look::Torn)));
                }
            }
            for (index, hint, sight) in more {
                let mut value = Vec::new();
                let key = keys[index].as_ref();
                let slowly = Box::pin(self.get_slowly(batch, key, (hint, sight), &mut value));
                let is_there = slowly.await?;
                read(first + index, is_there.then_some(&*value));
            }
        }
        Ok(())
    }

    /// Adds the READs of the one or two pages that a key may be in.
    pub(super) fn post_place(&self, batch: &mut Batch, place: Place) -> PostedPlace {
        PostedPlace {
            place,
            page: self.post_page(batch, place.page.addr),
            also: place.also.map(|also| self.post_page(batch, also.addr)),
        }
    }

    fn see<'b>(&self, batch: &'b Batch, posted: PostedPlace, key: &[u8]) -> Seen<'b> {
        let mut hint = posted.place.page;
        let mut image = self.image(batch, posted.page);
        let mut sight = self.look(image, hint.addr, key);
        if let (Some(also), Some(read)) = (posted.place.also, posted.also)
            && sight != Sight::Look(Look::Here)
        {
            let other = self.image(batch, read);
            let looked = self.look(other, also.addr, key);
            // What is to the right of the left one and to the left of the right one is between
            // them: go on from the left one.
            if !matches!(looked, Sight::Look(Look::Left | Look::Torn)) {
                (hint, image, sight) = (also, other, looked);
            }
        }
        match sight {
            Sight::Look(Look::Here) => see_in(image, hint, key),
            Sight::Look(Look::Torn) if self.leaves_out(ProtocolCheck::TornIsNotAbsent) => {
                Seen::Absent
            }
            more => Seen::More(hint, more),
        }
    }

    /// The end of a get that one look does not answer; whether the key is there.
    #[cold]
    async fn get_slowly(
        &self,
        batch: &mut Batch,
        key: &[u8],
        (hint, sight): (Hint, Sight),
        value: &mut Vec<u8>,
    ) -> Result<bool, ByteIndexError> {
        let (mut from, mut stale_count) = ((hint, sight), 0);
        loop {
            let Arrival {
                hint,
                page,
                mut outside,
            } = self.walk(batch, key, from).await?;
            let at = (hint.addr, &page);
            let is_whole = match self.find_surely(batch, at, key, &mut outside).await? {
                Answer::Absent => return Ok(false),
                Answer::Record(slot) => self.read_value(batch, at, slot, value).await?,
                Answer::Stale => false,
            };
            if is_whole {
                return Ok(true);
            }
            value.clear();
            self.note_stale(hint.addr, &mut stale_count)?;
            // The page has changed meanwhile: what it names now is there.
            from = (hint, Sight::Look(Look::Torn));
        }
    }

    /// Goes on from a page that was looked at to the one that covers the key; teaches the layer
    /// what it meets.
    ///
    /// Dropping the future while it reads a page under its lock may leave that locked; the session
    /// is then broken and must be closed.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(super) async fn walk(
        &self,
        batch: &mut Batch,
        key: &[u8],
        (mut hint, mut sight): (Hint, Sight),
    ) -> Result<Arrival, ByteIndexError> {
        self.hold_key(batch, key).await?;
        let mut course = Course::<Vec<u8>>::default();
        let (mut low, mut torn_count, mut stale_count) = (None, 0, 0);
        let (mut announced, mut link_count) = (None, 0);
        loop {
            let mut outside = Outside::new();
            // A hint that led too far left is stale: others have split. Ask how often, along the
            // way.
            let is_asked = announced.is_none() && matches!(sight, Sight::Look(Look::Right(_)));
            let page = match sight {
                Sight::Look(Look::Torn) => {
                    let broken = &self.state.broken;
                    let after = self
                        .access
                        .after_torn(batch, hint.addr, &mut torn_count, broken);
                    after.await?
                }
                // What the sight is of is not kept: it is read again, with what it needs.
                Sight::Unsure(_) | Sight::Look(Look::Here) => None,
                Sight::Look(look) => {
                    link_count += u32::from(matches!(look, Look::Right(_) | Look::Retired(_)));
                    hint = self.go_on(batch, &mut course, key, (hint, low.take()), look)?;
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
                    sight = Sight::Look(Look::Torn);
                    continue;
                }
                PageBuffer::copy_of(image)
            };
            let at = (hint.addr, &page);
            let look = self.look_surely(batch, at, key, &mut outside).await?;
            if look == Look::Torn {
                self.note_stale(hint.addr, &mut stale_count)?;
            }
            low = low_of(page.image());
            match (look, &low) {
                (Look::Here, low) => {
                    if let Some(low) = low {
                        self.learn(low, hint);
                    }
                    self.state.note_links(link_count);
                    if let Some(announced) = announced {
                        Box::pin(self.catch_up(batch, announced)).await?;
                    }
                    return Ok(Arrival {
                        hint,
                        page,
                        outside,
                    });
                }
                (Look::Right(_) | Look::Left, Some(low)) if !page.image().is_retired() => {
                    self.learn(low, hint);
                }
                _ => {}
            }
            sight = Sight::Look(look);
        }
    }

    /// Strings of value blocks, each `None` if it is not there (any more). One round trip for all
    /// that lie in pieces.
    ///
    /// # Errors
    /// A page is damaged, or the fabric failed.
    pub(super) async fn read_strings(
        &self,
        batch: &mut Batch,
        strings: &[(RemoteAddr, Reference)],
    ) -> Result<Vec<Option<Vec<u8>>>, ByteIndexError> {
        let blocks = self.blocks();
        batch.clear();
        let mut posted = Vec::with_capacity(strings.len());
        for (addr, reference) in strings {
            let pointer = farleaf_block::FatPointer::from_word(reference.pointer.word());
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
        for (at, (copied, mut value)) in strings.iter().zip(values) {
            let copied = match copied {
                Some(copied) => copied,
                None => read_string(&self.access, batch, *at, &mut value).await?,
            };
            whole.push((copied == farleaf_block::Copied::Whole).then_some(value));
        }
        Ok(whole)
    }
}

/// What a page that covers a key says of it.
fn see_in<'b>(image: PageImage<'b>, hint: Hint, key: &[u8]) -> Seen<'b> {
    match image.find(key, NOTHING_OUTSIDE) {
        Found::Absent => Seen::Absent,
        Found::Record(slot) => match image.value(slot) {
            Value::Inline(value) => Seen::Inline(value),
            Value::Outside(reference) => Seen::Outside(reference),
        },
        Found::Unsure(_) => Seen::More(hint, Sight::Look(Look::Here)),
    }
}
