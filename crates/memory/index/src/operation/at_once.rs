//! Reading keys on endpoints with immediate reads (`mem`, `shm`): does what [`Index::get`] and
//! [`Index::multi_get`] do while every hint is right, without batch and future.
//!
//! No other decision is made here. If a leaf does not cover the key (LEAF-4), it is passed with its
//! result to the ordinary operation, which continues.

use farleaf_fabric::{Batch, Cost, Endpoint};
use farleaf_leaf::words::LeafCheck;

use super::read::MULTI_GET_BATCH_COUNT;
use super::{Hint, Index};
use crate::IndexError;
use crate::layer::Layer;
use crate::learned::GROUP_COUNT;

/// Leaf that was read and does not have the key, with the result of the look.
#[derive(Clone, Copy, Debug)]
pub struct MissedLeaf {
    /// Index of the key among those requested.
    key_index: usize,
    hint: Hint,
    look: LeafCheck,
}

/// Result of an immediate get.
#[derive(Debug)]
pub enum GetAtOnce {
    /// Value of the key.
    Value(Option<u64>),
    /// One leaf was read, and the key is in another.
    MissedLeaf(MissedLeaf),
    /// Nothing was read; use the ordinary operation, which returns the value or the error.
    Unable,
}

/// Result of an immediate `multi_get`.
#[derive(Debug)]
pub enum MultiGetAtOnce {
    /// One leaf was read per key. All values are set except for these keys.
    Read(Vec<MissedLeaf>),
    /// No value was read; use the ordinary operation, which returns the values or the error.
    Unable,
}

impl<E: Endpoint> Index<'_, E> {
    /// Returns the value of a key: does what [`get`](Self::get) does if it needs one leaf.
    #[inline]
    pub fn get_at_once(&self, key: u64) -> GetAtOnce {
        if !self.access.endpoint.reads_at_once() {
            return GetAtOnce::Unable;
        }
        let Some(hint) = self.one_leaf(key) else {
            return GetAtOnce::Unable;
        };
        match self.access.probe(hint.addr, key) {
            Some(Ok(value)) => GetAtOnce::Value(value),
            Some(Err(look)) => GetAtOnce::MissedLeaf(MissedLeaf {
                key_index: 0,
                hint,
                look,
            }),
            None => GetAtOnce::Unable,
        }
    }

    /// Continues where [`get_at_once`](Self::get_at_once) ended.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn continue_get(
        &self,
        batch: &mut Batch,
        key: u64,
        elsewhere: MissedLeaf,
    ) -> Result<Option<u64>, IndexError> {
        *batch.cost_mut() += self.cost_at_once(1);
        self.get_slowly(batch, key, elsewhere.hint, elsewhere.look)
            .await
    }

    /// Reads the values of many keys: does what [`multi_get`](Self::multi_get) does if it needs one
    /// leaf each.
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
                match self.access.probe(hint.addr, *key) {
                    Some(Ok(value)) => values.push(value),
                    Some(Err(look)) => {
                        elsewhere.push(MissedLeaf {
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

    /// Continues where [`multi_get_at_once`](Self::multi_get_at_once) ended.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn continue_multi_get(
        &self,
        batch: &mut Batch,
        keys: &[u64],
        values: &mut [Option<u64>],
        elsewhere: &[MissedLeaf],
    ) -> Result<(), IndexError> {
        *batch.cost_mut() += self.cost_at_once(keys.len());
        for found in elsewhere {
            let key = keys[found.key_index];
            let walk = Box::pin(self.get_slowly(batch, key, found.hint, found.look));
            values[found.key_index] = walk.await?;
        }
        Ok(())
    }

    /// Returns the cost of reading one leaf for each of `key_count` keys: the same as with batches.
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
