//! Page of models in a session's memory.

use core::ops::Range;
use std::rc::Rc;

use crate::clock::CachedValue;
use crate::directory::Model;
use crate::hint::{Announcement, due_split_count};

/// Model with the place of its leaves in the directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedModel {
    pub(super) model: Model,
    /// Number of the model's first leaf.
    pub(super) first_leaf: u32,
}

/// Models of one page. Operations keep the page that they use alive, even if it is evicted
/// meanwhile.
#[derive(Debug)]
pub struct ModelPage {
    models: Box<[PlacedModel]>,
}

impl ModelPage {
    /// Creates a page of at least one model, whose first leaf has this number.
    pub(super) fn new(first_leaf: u32, models: &[Model]) -> Self {
        let mut next = first_leaf;
        let placed = models.iter().map(|model| {
            let first_leaf = next;
            next += model.leaf_count;
            PlacedModel {
                model: *model,
                first_leaf,
            }
        });
        Self {
            models: placed.collect(),
        }
    }

    /// Returns the model that a key of this page is routed to.
    pub(super) fn model_of_key(&self, key: u64) -> &PlacedModel {
        let behind = self
            .models
            .partition_point(|placed| placed.model.first_key <= key);
        &self.models[behind.saturating_sub(1)]
    }

    /// Returns the model of a leaf of this page.
    pub(super) fn model_of_leaf(&self, leaf: u32) -> &PlacedModel {
        let behind = self
            .models
            .partition_point(|placed| placed.first_leaf <= leaf);
        &self.models[behind.saturating_sub(1)]
    }

    /// Returns where a split of a leaf of this page is announced.
    pub(crate) fn announcement(&self, parent: u32) -> Option<Announcement> {
        let PlacedModel { model, first_leaf } = self.model_of_leaf(parent);
        (!model.synonym_table.is_null()).then(|| Announcement {
            counter: model.synonym_table.word_at(0),
            capacity: model.synonym_capacity,
            // Not used, because announcements are not read.
            model: u32::MAX,
            parent_in_model: parent.saturating_sub(*first_leaf) as u16,
            due_split_count: due_split_count(model.leaf_count),
        })
    }

    /// Returns the numbers of the page's leaves.
    pub(crate) fn leaves(&self) -> Range<u32> {
        let last = self.models[self.models.len() - 1];
        self.models[0].first_leaf..last.first_leaf + last.model.leaf_count
    }

    /// Returns where splits of leaves of each of the page's models are announced.
    pub(crate) fn announcements(&self) -> impl Iterator<Item = Announcement> {
        let models = self.models.iter();
        models.filter_map(|placed| self.announcement(placed.first_leaf))
    }
}

/// Bytes that the allocator adds to an allocation.
pub const ALLOCATION_BYTES: u64 = 16;

impl ModelPage {
    /// Returns the bytes of a page of `model_count` models: itself with its reference counts, and
    /// the models.
    pub(super) const fn bytes(model_count: usize) -> u64 {
        let counts = 2 * size_of::<usize>();
        let models = model_count * size_of::<PlacedModel>();
        (counts + size_of::<Self>() + models) as u64 + 2 * ALLOCATION_BYTES
    }
}

impl CachedValue for Rc<ModelPage> {
    fn content_bytes(&self) -> u64 {
        ModelPage::bytes(self.models.len())
    }
}
