//! Where keys are as far as the training tells, and what has to be read to know: nothing, unless
//! the session has a metadata budget (BL6).

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint};

use super::{ByteIndex, ByteIndexState};
use crate::directory::Place;
use crate::error::ByteIndexError;
use crate::learned::TellingPart;
use crate::partial::{HeldPart, PartialDirectory};
use crate::snapshot::SnapshotParts;

/// What an operation has in hand of a snapshot: the part that it has last asked for, until it ends
/// or is dropped. Nothing where the session has no budget.
#[derive(Debug)]
pub struct InHand<'s> {
    state: &'s ByteIndexState,
    part: RefCell<Option<(Rc<SnapshotParts>, usize)>>,
}

impl<'s> InHand<'s> {
    /// Nothing yet, of an operation on this table; `None`: the session has no budget.
    #[inline]
    pub fn of(state: &'s ByteIndexState) -> Option<Self> {
        let part = RefCell::new(None);
        (!state.layer().is_whole()).then_some(Self { state, part })
    }

    fn take(&self, snapshot: &Rc<SnapshotParts>, (number, part): (usize, &Rc<HeldPart>)) {
        let mut layer = self.state.layer_mut();
        let Some(directory) = layer.as_partial_mut() else {
            return;
        };
        directory.pin(snapshot, (number, part));
        let last = self.part.replace(Some((Rc::clone(snapshot), number)));
        if let Some((snapshot, number)) = last {
            directory.unpin(&snapshot, number);
        }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        if let Some((snapshot, number)) = self.part.take()
            && let Some(directory) = self.state.layer_mut().as_partial_mut()
        {
            directory.unpin(&snapshot, number);
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Where a key probably is. One round trip if the part that tells is not held.
    #[inline]
    pub(super) async fn place(
        &self,
        batch: &mut Batch,
        key: &[u8],
    ) -> Result<Place, ByteIndexError> {
        let located = self.state.layer().locate(key);
        match located {
            Ok(place) => Ok(place),
            Err(telling) => Box::pin(self.place_by_part(batch, key, telling)).await,
        }
    }

    /// The same, under a metadata budget.
    pub(super) async fn place_by_part(
        &self,
        batch: &mut Batch,
        key: &[u8],
        mut telling: TellingPart,
    ) -> Result<Place, ByteIndexError> {
        loop {
            let part = match &telling.part {
                Some(part) => Rc::clone(part),
                None => self.fetch_one(batch, &telling).await?,
            };
            let layer = self.state.layer();
            // Another future may have taken another root, of which the part tells nothing (BL4).
            if layer.is_of(&telling.snapshot) {
                self.tell_if_stale(&part, &telling.snapshot);
                let place = layer.locate_in(&part, key);
                drop(layer);
                self.take_in_hand(&telling, &part);
                return Ok(place);
            }
            match layer.locate(key) {
                Ok(place) => return Ok(place),
                Err(newer) => telling = newer,
            }
        }
    }

    /// BL4: a part that is searched by is one of the root's snapshot.
    fn tell_if_stale(&self, part: &HeldPart, snapshot: &SnapshotParts) {
        if !part.is_of(snapshot) {
            self.access.endpoint.note_stale_part();
        }
    }

    /// Where many keys probably are, in their order. One round trip for the parts that tell and are
    /// not held, and one more for each 512 KiB of them.
    pub(super) async fn places<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
    ) -> Result<Vec<Place>, ByteIndexError> {
        loop {
            let (mut places, mut from) = (Vec::with_capacity(keys.len()), None);
            let mut wanting = BTreeMap::<usize, Vec<usize>>::new();
            {
                let layer = self.state.layer();
                for (index, key) in keys.iter().enumerate() {
                    let key = key.as_ref();
                    let place = match layer.locate(key) {
                        Ok(place) => place,
                        Err(TellingPart {
                            part: Some(part),
                            snapshot,
                            ..
                        }) => {
                            self.tell_if_stale(&part, &snapshot);
                            layer.locate_in(&part, key)
                        }
                        Err(telling) => {
                            wanting.entry(telling.number).or_default().push(index);
                            from = Some(telling.snapshot);
                            Place::at(layer.first_page())
                        }
                    };
                    places.push(place);
                }
            }
            let Some(from) = from else {
                return Ok(places);
            };
            let numbers: Vec<usize> = wanting.keys().copied().collect();
            let parts = Box::pin(self.fetch(batch, &from, &numbers)).await?;
            let layer = self.state.layer();
            if !layer.is_of(&from) {
                continue;
            }
            for (part, indices) in parts.iter().zip(wanting.values()) {
                for index in indices {
                    places[*index] = layer.locate_in(part, keys[*index].as_ref());
                }
            }
            return Ok(places);
        }
    }

    /// Takes the part in hand that tells of a key: who goes from page to page wants to know which
    /// of them are trained ones. One round trip if it is not held.
    pub(super) async fn hold_key(
        &self,
        batch: &mut Batch,
        key: &[u8],
    ) -> Result<(), ByteIndexError> {
        if !self.state.layer().is_whole() {
            self.place(batch, key).await?;
        }
        Ok(())
    }

    /// The same of the page with this number.
    pub(super) async fn hold_page(
        &self,
        batch: &mut Batch,
        number: u32,
    ) -> Result<(), ByteIndexError> {
        let telling = self.state.layer().part_of_page(number);
        let Some(telling) = telling else {
            return Ok(());
        };
        let part = match &telling.part {
            Some(part) => Rc::clone(part),
            None => Box::pin(self.fetch_one(batch, &telling)).await?,
        };
        self.take_in_hand(&telling, &part);
        Ok(())
    }

    fn take_in_hand(&self, telling: &TellingPart, part: &Rc<HeldPart>) {
        if let Some(in_hand) = self.in_hand {
            in_hand.take(&telling.snapshot, (telling.number, part));
        }
    }

    #[cold]
    async fn fetch_one(
        &self,
        batch: &mut Batch,
        telling: &TellingPart,
    ) -> Result<Rc<HeldPart>, ByteIndexError> {
        let numbers = [telling.number];
        let mut parts = self.fetch(batch, &telling.snapshot, &numbers).await?;
        Ok(parts.pop().expect("as many as were asked for"))
    }

    /// Reads parts of a snapshot, and keeps them as far as there is room.
    async fn fetch(
        &self,
        batch: &mut Batch,
        from: &Rc<SnapshotParts>,
        numbers: &[usize],
    ) -> Result<Vec<Rc<HeldPart>>, ByteIndexError> {
        let access = &self.access;
        let pool = (access.layout, access.geometry);
        let parts = PartialDirectory::read(from, access.endpoint, batch, pool, numbers).await?;
        let mut layer = self.state.layer_mut();
        for (number, part) in numbers.iter().zip(&parts) {
            layer.keep(from, *number, part);
        }
        drop(layer);
        Ok(parts)
    }
}
