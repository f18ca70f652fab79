//! Where keys are as far as the training tells, and what has to be read to know: nothing, unless
//! the session has a metadata budget (BL6).

use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::hint::Hint;

use super::ByteIndex;
use crate::directory::Place;
use crate::error::ByteIndexError;
use crate::partial::{HeldPart, PartialDirectory};
use crate::snapshot::SnapshotParts;

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
            Err(missing) => {
                let numbers = [missing.number];
                let fetched = self.fetch(batch, &missing.snapshot, &numbers);
                let parts = Box::pin(fetched).await?;
                Ok(self.state.layer().locate_in(&parts[0], key))
            }
        }
    }

    /// Where many keys probably are, in their order. One round trip for the parts that tell and are
    /// not held, and one more for each 512 KiB of them.
    pub(super) async fn places<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
    ) -> Result<Vec<Place>, ByteIndexError> {
        let mut places = Vec::with_capacity(keys.len());
        let (mut from, mut wanting) = (None, BTreeMap::<usize, Vec<usize>>::new());
        {
            let layer = self.state.layer();
            for (index, key) in keys.iter().enumerate() {
                places.push(layer.locate(key.as_ref()).unwrap_or_else(|missing| {
                    wanting.entry(missing.number).or_default().push(index);
                    from = Some(missing.snapshot);
                    Place::at(layer.first_page())
                }));
            }
        }
        let Some(from) = from else {
            return Ok(places);
        };
        let numbers: Vec<usize> = wanting.keys().copied().collect();
        let parts = Box::pin(self.fetch(batch, &from, &numbers)).await?;
        let layer = self.state.layer();
        for (part, indices) in parts.iter().zip(wanting.values()) {
            for index in indices {
                places[*index] = layer.locate_in(part, keys[*index].as_ref());
            }
        }
        drop(layer);
        Ok(places)
    }

    /// Reads the part that tells of a key, if it is not held: who goes from page to page wants to
    /// know which of them are trained ones.
    pub(super) async fn hold_key(
        &self,
        batch: &mut Batch,
        key: &[u8],
    ) -> Result<(), ByteIndexError> {
        if !self.state.layer().is_whole() {
            Box::pin(self.place(batch, key)).await?;
        }
        Ok(())
    }

    /// Reads the part that tells of the page with this number, if it is not held.
    pub(super) async fn hold_page(
        &self,
        batch: &mut Batch,
        number: u32,
    ) -> Result<(), ByteIndexError> {
        let missing = self.state.layer().missing_for_page(number);
        if let Some(missing) = missing {
            let numbers = [missing.number];
            let fetched = self.fetch(batch, &missing.snapshot, &numbers);
            Box::pin(fetched).await?;
        }
        Ok(())
    }

    /// Whether what tells of a page and its neighbours is held.
    pub(super) fn is_held(&self, hint: Hint) -> bool {
        let layer = self.state.layer();
        layer.missing_for_page(hint.parent).is_none()
    }

    /// Reads parts of a snapshot, and keeps them as far as there is room.
    #[cold]
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
