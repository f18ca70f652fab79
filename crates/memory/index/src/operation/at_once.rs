//! Reading keys on endpoints that read at once (`mem`, `shm`): what [`Index::get`] and
//! [`Index::multi_get`] do while every hint is right, without batch and future.
//!
//! Nothing is decided here that is not decided there: a leaf that does not answer (D4) is handed
//! over, with what it told, and the rest is theirs.

use farleaf_fabric::{Batch, Cost, Endpoint};
use farleaf_leaf::Look;

use super::read::MULTI_GET_BATCH_COUNT;
use super::{Hint, Index};
use crate::IndexError;
use crate::layer::Layer;
use crate::learned::GROUP_COUNT;

/// A leaf that was read and does not have the key, and what it told.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere {
    /// Which of the keys.
    key_index: usize,
    hint: Hint,
    look: Look,
}

/// What became of a get at once.
#[derive(Debug)]
pub enum GetAtOnce {
    /// The key's value.
    Value(Option<u64>),
    /// One leaf was read, and the key is elsewhere.
    Elsewhere(Elsewhere),
    /// Nothing was read: the ordinary operation can, or tells why not.
    Unable,
}

/// What became of a `multi_get` at once.
#[derive(Debug)]
pub enum MultiGetAtOnce {
    /// One leaf was read per key. The values are there but for these keys.
    Read(Vec<Elsewhere>),
    /// The values are not there: the ordinary operation can read them, or tells why not.
    Unable,
}

impl<E: Endpoint> Index<'_, E> {
    /// The value of a key: what [`get`](Self::get) does if it needs one leaf.
    #[inline]
    pub fn get_at_once(&self, key: u64) -> GetAtOnce {
        if !self.access.endpoint.reads_at_once() {
            return GetAtOnce::Unable;
        }
        let Some(hint) = self.one_leaf(key) else {
            return GetAtOnce::Unable;
        };
        match self.access.glance(hint.addr, key) {
            Some(Ok(value)) => GetAtOnce::Value(value),
            Some(Err(look)) => GetAtOnce::Elsewhere(Elsewhere {
                key_index: 0,
                hint,
                look,
            }),
            None => GetAtOnce::Unable,
        }
    }

    /// Goes on from where [`get_at_once`](Self::get_at_once) ended.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_elsewhere(
        &self,
        batch: &mut Batch,
        key: u64,
        elsewhere: Elsewhere,
    ) -> Result<Option<u64>, IndexError> {
        *batch.cost_mut() += self.cost_at_once(1);
        self.get_slowly(batch, key, elsewhere.hint, elsewhere.look)
            .await
    }

    /// The values of many keys: what [`multi_get`](Self::multi_get) does if it needs one leaf each.
    pub fn multi_get_at_once(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> MultiGetAtOnce {
        let layer = self.state.layer.borrow();
        let Layer::Learned(layer) = &*layer else {
            return MultiGetAtOnce::Unable;
        };
        if !self.access.endpoint.reads_at_once() {
            return MultiGetAtOnce::Unable;
        }
        values.clear();
        values.reserve(keys.len());
        let geometry = self.access.geometry;
        let prepare = |leaf| {
            let size_words = geometry.image_size_words();
            self.access
                .endpoint
                .prepare(geometry.state(leaf), size_words);
        };
        let mut elsewhere = Vec::new();
        for group in keys.chunks(GROUP_COUNT) {
            let mut hints = [Hint::default(); GROUP_COUNT];
            layer.locate_group(group, &mut hints, prepare);
            for (key, hint) in group.iter().zip(&hints) {
                match self.access.glance(hint.addr, *key) {
                    Some(Ok(value)) => values.push(value),
                    Some(Err(look)) => {
                        elsewhere.push(Elsewhere {
                            key_index: values.len(),
                            hint: *hint,
                            look,
                        });
                        values.push(None);
                    }
                    None => return MultiGetAtOnce::Unable,
                }
            }
        }
        MultiGetAtOnce::Read(elsewhere)
    }

    /// Goes on from where [`multi_get_at_once`](Self::multi_get_at_once) ended.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn multi_get_elsewhere(
        &self,
        batch: &mut Batch,
        keys: &[u64],
        values: &mut [Option<u64>],
        elsewhere: &[Elsewhere],
    ) -> Result<(), IndexError> {
        *batch.cost_mut() += self.cost_at_once(keys.len());
        for found in elsewhere {
            let key = keys[found.key_index];
            let walk = Box::pin(self.get_slowly(batch, key, found.hint, found.look));
            values[found.key_index] = walk.await?;
        }
        Ok(())
    }

    /// What reading a leaf for each of so many keys at once has cost: as much as with batches.
    #[inline]
    pub fn cost_at_once(&self, key_count: usize) -> Cost {
        let batch_count = key_count.div_ceil(MULTI_GET_BATCH_COUNT) as u64;
        let leaf_count = key_count as u64;
        Cost {
            round_trips: batch_count,
            doorbells: batch_count,
            verbs: leaf_count,
            bytes_read: leaf_count
                * (self.access.geometry.image_size_words() * size_of::<u64>()) as u64,
            leaves_read: leaf_count,
            ..Cost::default()
        }
    }
}
