//! Predicts where keys are, and reads the parts of the snapshot that predictions need. Only
//! sessions with a metadata budget read parts.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint};

use super::{ByteIndex, ByteIndexState};
use crate::strings::directory::KeyLocation;
use crate::strings::error::ByteIndexError;
use crate::strings::learned::NeededPart;
use crate::strings::partial::{LoadedPart, PartialDirectory};
use crate::strings::snapshot::SnapshotParts;

/// Pin of the snapshot part that an operation requested last; released when the operation ends or
/// is dropped. Sessions without a metadata budget need none.
#[derive(Debug)]
pub struct PinnedPart<'s> {
    state: &'s ByteIndexState,
    part: RefCell<Option<(Rc<SnapshotParts>, usize)>>,
}

impl<'s> PinnedPart<'s> {
    /// Creates an empty pin for an operation on this table; `None` if the session has no metadata
    /// budget.
    #[inline]
    pub fn of(state: &'s ByteIndexState) -> Option<Self> {
        let part = RefCell::new(None);
        (!state.layer().is_whole()).then_some(Self { state, part })
    }

    fn take(&self, snapshot: &Rc<SnapshotParts>, number: usize, part: &Rc<LoadedPart>) {
        let mut layer = self.state.layer_mut();
        let Some(directory) = layer.as_partial_mut() else {
            return;
        };
        directory.pin(snapshot, number, part);
        let last = self.part.replace(Some((Rc::clone(snapshot), number)));
        if let Some((snapshot, number)) = last {
            directory.unpin(&snapshot, number);
        }
    }
}

impl Drop for PinnedPart<'_> {
    fn drop(&mut self) {
        if let Some((snapshot, number)) = self.part.take()
            && let Some(directory) = self.state.layer_mut().as_partial_mut()
        {
            directory.unpin(&snapshot, number);
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Returns the expected location of a key. Costs one round trip if the part that predicts it is
    /// not held.
    #[inline]
    pub(super) async fn place(
        &self,
        batch: &mut Batch,
        key: &[u8],
    ) -> Result<KeyLocation, ByteIndexError> {
        let located = self.state.layer().locate(key);
        match located {
            Ok(place) => Ok(place),
            Err(telling) => Box::pin(self.place_by_part(batch, key, telling)).await,
        }
    }

    /// Returns the expected location of a key under a metadata budget.
    pub(super) async fn place_by_part(
        &self,
        batch: &mut Batch,
        key: &[u8],
        mut telling: NeededPart,
    ) -> Result<KeyLocation, ByteIndexError> {
        loop {
            let part = match &telling.part {
                Some(part) => Rc::clone(part),
                None => self.fetch_one(batch, &telling).await?,
            };
            let layer = self.state.layer();
            // Another future may have switched to another root, about which the part says nothing.
            if layer.is_of(&telling.snapshot) {
                self.report_stale_part(&part, &telling.snapshot);
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

    /// Reports a part that does not belong to the root's snapshot to the simulator's checks.
    fn report_stale_part(&self, part: &LoadedPart, snapshot: &SnapshotParts) {
        if !part.is_of(snapshot) {
            self.access.endpoint.note_stale_part();
        }
    }

    /// Returns the expected locations of many keys, in their order. Costs one round trip for the
    /// needed parts that are not held, and one more for each 512 KiB of them.
    pub(super) async fn places<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
    ) -> Result<Vec<KeyLocation>, ByteIndexError> {
        loop {
            let (mut places, mut from) = (Vec::with_capacity(keys.len()), None);
            let mut wanting = BTreeMap::<usize, Vec<usize>>::new();
            {
                let layer = self.state.layer();
                for (index, key) in keys.iter().enumerate() {
                    let key = key.as_ref();
                    let place = match layer.locate(key) {
                        Ok(place) => place,
                        Err(NeededPart {
                            part: Some(part),
                            snapshot,
                            ..
                        }) => {
                            self.report_stale_part(&part, &snapshot);
                            layer.locate_in(&part, key)
                        }
                        Err(telling) => {
                            wanting.entry(telling.number).or_default().push(index);
                            from = Some(telling.snapshot);
                            KeyLocation::at(layer.first_page())
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

    /// Pins the part that covers a key. A walk from page to page uses it to recognize trained
    /// pages. Costs one round trip if the part is not held.
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

    /// Pins the part that covers the page with this number. Costs one round trip if the part is not
    /// held.
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

    fn take_in_hand(&self, telling: &NeededPart, part: &Rc<LoadedPart>) {
        if let Some(pinned_part) = self.pinned_part {
            pinned_part.take(&telling.snapshot, telling.number, part);
        }
    }

    #[cold]
    async fn fetch_one(
        &self,
        batch: &mut Batch,
        telling: &NeededPart,
    ) -> Result<Rc<LoadedPart>, ByteIndexError> {
        let numbers = [telling.number];
        let mut parts = self.fetch(batch, &telling.snapshot, &numbers).await?;
        Ok(parts.pop().expect("as many as were asked for"))
    }

    /// Reads parts of a snapshot, and keeps those that fit the budget.
    async fn fetch(
        &self,
        batch: &mut Batch,
        from: &Rc<SnapshotParts>,
        numbers: &[usize],
    ) -> Result<Vec<Rc<LoadedPart>>, ByteIndexError> {
        let access = &self.access;
        let (layout, geometry) = (access.layout, access.geometry);
        let parts =
            PartialDirectory::read(from, access.endpoint, batch, layout, geometry, numbers).await?;
        let mut layer = self.state.layer_mut();
        for (number, part) in numbers.iter().zip(&parts) {
            layer.keep(from, *number, part);
        }
        drop(layer);
        Ok(parts)
    }
}
