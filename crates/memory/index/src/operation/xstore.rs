//! Finding leaves in a client by models of the memory node. For other search layers these methods
//! post nothing.

use core::cell::Cell;
use std::sync::Arc;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::words::{LeafCheck, SearchPath};
use farleaf_pool::PoolLayout;

use super::{Index, IndexState};
use crate::IndexError;
use crate::hint::Candidates;
use crate::layer::Layer;
use crate::xstore::layer::{
    CachedSubModel, RequiredRead, TABLE_LENGTH_MAX, candidates, indices, narrow,
};
use crate::xstore::record::RECORD_SIZE_WORDS;
use crate::xstore::{Generation, ModelHead, ModelVersion, SubModelRecord, TablePosition};

/// Largest number of words of a top model that one verb reads.
const TRANSFER_SIZE_WORDS: usize = 64 << 10;
const _: () = assert!(TRANSFER_SIZE_WORDS.is_multiple_of(RECORD_SIZE_WORDS));

/// Largest number of times that a torn record is read again: the node writes one record at a time.
const TORN_COUNT_MAX: u32 = 4;

impl IndexState {
    /// Returns the version of what the session uses for a key, so that the node can reply with
    /// newer models.
    pub fn model_version_for(&self, key: u64) -> ModelVersion {
        let layer = self.layer.borrow();
        let layer = layer.as_xstore();
        layer.map_or_else(ModelVersion::default, |layer| layer.version_for(key))
    }

    /// Returns the most probable position of a key, which a write sends to the node.
    pub fn model_place_of(&self, key: u64) -> Option<TablePosition> {
        self.layer.borrow().as_xstore()?.place_of(key)
    }

    /// Caches a newer sub-model that the node returned.
    pub fn take_sub_model(&self, number: u32, sub_model: CachedSubModel) {
        if let Some(layer) = self.layer.borrow_mut().as_xstore_mut() {
            layer.keep(number, sub_model);
        }
    }

    /// Removes a sub-model for which the node reported a newer one, which the session must read.
    pub fn forget_sub_model(&self, number: u32) {
        if let Some(layer) = self.layer.borrow_mut().as_xstore_mut() {
            layer.forget(number);
        }
    }

    /// Returns the address of a sub-model's record, if the session knows the models' head.
    pub fn sub_model_record(&self, number: u32) -> Option<RemoteAddr> {
        let layer = self.layer.borrow();
        let head = layer.as_xstore()?.head()?;
        (number < head.sub_model_count).then(|| head.record(number))
    }

    /// Counts a call to the node because models did not lead to a key.
    pub fn note_fallback(&self) {
        self.count_hint(|counters| counters.fallback_count += 1);
    }

    /// Sets whether operations follow one link before they call the node.
    pub fn set_speculative(&self, is_speculative: bool) {
        self.is_speculative.set(is_speculative);
    }

    /// Makes the layer of one of the node's sessions start its next search at this leaf.
    pub fn suggest(&self, leaf: RemoteAddr) {
        if let Layer::Inner(layer) = &*self.layer.borrow() {
            layer.suggest(leaf);
        }
    }

    /// Returns the lower fences of leaves that a session of the node has added to its tree.
    pub fn take_added_leaves(&self) -> Vec<u64> {
        match &mut *self.layer.borrow_mut() {
            Layer::Inner(layer) => layer.take_added(),
            _ => Vec::new(),
        }
    }
}

/// Guard: while it lives, the session's operations follow links as long as necessary.
pub(super) struct LinkFollowGuard<'a>(&'a Cell<u32>);

impl Drop for LinkFollowGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl IndexState {
    /// Makes operations follow links as long as necessary, for a survey of all leaves without
    /// models.
    pub(super) fn follow_all_links(&self) -> LinkFollowGuard<'_> {
        self.link_follow_count.set(self.link_follow_count.get() + 1);
        LinkFollowGuard(&self.link_follow_count)
    }
}

/// Returns the entries of a translation table, with null for those that name no place in a chunk.
pub fn sound_entries(layout: &PoolLayout, words: &[u64]) -> Vec<RemoteAddr> {
    let entries = words.iter().copied().map(RemoteAddr::from_word);
    let sound = |entry: RemoteAddr| {
        let is_sound = layout.chunk_of(entry.place()).is_some();
        if is_sound { entry } else { RemoteAddr::NULL }
    };
    entries.map(sound).collect()
}

impl<E: Endpoint> Index<'_, E> {
    pub(super) fn is_xstore(&self) -> bool {
        self.state.layer.borrow().as_xstore().is_some()
    }

    /// Checks that an operation follows at most one link before it calls the node.
    #[inline]
    pub(super) fn check_link_count(
        &self,
        course: &SearchPath,
        key: u64,
        look: LeafCheck,
    ) -> Result<(), IndexError> {
        if !matches!(&*self.state.layer.borrow(), Layer::Xstore(_)) {
            return Ok(());
        }
        let link_count_max = u32::from(self.state.is_speculative.get());
        let goes_on = matches!(look, LeafCheck::Right(_)) && course.link_count <= link_count_max;
        if goes_on || self.state.link_follow_count.get() > 0 {
            return Ok(());
        }
        Err(IndexError::FallBack { key })
    }

    /// Returns the leaf that covers a key, and the key's value. Costs one round trip if the hint is
    /// right.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn find(
        &self,
        batch: &mut Batch,
        key: u64,
    ) -> Result<(RemoteAddr, Option<u64>), IndexError> {
        let hint = self.locate(key);
        batch.clear();
        let read = self.post_leaf(batch, hint.addr);
        self.access.endpoint.execute(batch).await?;
        let image = self.image(batch, read);
        match self.access.look(image, hint.addr, key) {
            LeafCheck::Here => Ok((hint.addr, image.get(key))),
            look => {
                let (hint, leaf) = self.walk(batch, key, hint, look).await?;
                Ok((hint.addr, leaf.image().get(key)))
            }
        }
    }

    /// Returns the leaves to read for a key. Models that are not cached are read first: one round
    /// trip for the sub-model, and one for its table or the entries needed.
    pub(super) async fn candidates_by_models(
        &self,
        batch: &mut Batch,
        key: u64,
    ) -> Result<Option<Candidates>, IndexError> {
        let stride_blocks = self.access.geometry.stride_blocks();
        let need = match self.state.layer.borrow_mut().as_xstore_mut() {
            Some(layer) => layer.need(key, stride_blocks),
            None => return Ok(None),
        };
        let fall_back = || IndexError::FallBack { key };
        let sub_model = match need {
            RequiredRead::Nothing(found) => return Ok(Some(found)),
            RequiredRead::Node => return Err(fall_back()),
            RequiredRead::Entries(sub_model) => sub_model,
            RequiredRead::Record {
                generation,
                number,
                place,
            } => {
                let record = self.read_record(batch, place).await?;
                let layout = self.access.layout;
                let is_sound = |record: &SubModelRecord| {
                    record.generation == generation && layout.chunk_of(record.table).is_some()
                };
                let record = record.filter(is_sound);
                let record = record.ok_or_else(fall_back)?;
                self.fetched(batch, number, record).await?
            }
        };
        let range = indices(&sub_model.record.model, key).ok_or_else(fall_back)?;
        let first = *range.start();
        let entries = if sub_model.table.is_empty() {
            let from = sub_model.record.table.word_at(*range.start() as u64);
            batch.clear();
            let read = batch.read(from, range.end() - range.start() + 1);
            self.access.endpoint.execute(batch).await?;
            sound_entries(self.access.layout, batch.words(read))
        } else {
            sub_model.table.get(range).unwrap_or_default().to_vec()
        };
        let entries = narrow(&sub_model.record.model, key, first, &entries);
        let found = candidates(entries, stride_blocks);
        found.map(Some).ok_or_else(fall_back)
    }

    /// Takes over newer models that the node reported: reads the top model, unless another session
    /// of the process has, and uses it from now on. Costs one round trip per 16,384 lines. If the
    /// memory has other models than reported, they are newer still, and the node reports them at
    /// the next call.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn take_model_head(
        &self,
        batch: &mut Batch,
        head: ModelHead,
    ) -> Result<(), IndexError> {
        let is_known = match self.state.layer.borrow_mut().as_xstore_mut() {
            Some(layer) => layer.is_known(head.generation),
            None => true,
        };
        if is_known {
            return Ok(());
        }
        // Each block names its models, so a head that claims too many lines costs one useless
        // transfer.
        let size_words = head.lines_size_words();
        let mut lines = Vec::new();
        for from in (0..size_words).step_by(TRANSFER_SIZE_WORDS) {
            let count = (size_words - from).min(TRANSFER_SIZE_WORDS);
            batch.clear();
            let read = batch.read(head.records.word_at(from as u64), count);
            self.access.endpoint.execute(batch).await?;
            let first_block = (from / RECORD_SIZE_WORDS) as u64;
            if head
                .take_lines(
                    first_block,
                    batch.words(read),
                    self.access.table,
                    &mut lines,
                )
                .is_none()
            {
                return Ok(());
            }
        }
        let top = head.top_of(lines);
        if let (Some(top), Some(layer)) = (top, self.state.layer.borrow_mut().as_xstore_mut()) {
            layer.take_generation(Generation { head, top });
        }
        Ok(())
    }

    /// Reads a sub-model's record; `None` if it stays torn, or is of another generation or table.
    async fn read_record(
        &self,
        batch: &mut Batch,
        place: RemoteAddr,
    ) -> Result<Option<SubModelRecord>, IndexError> {
        for _ in 0..TORN_COUNT_MAX {
            batch.clear();
            let read = batch.read(place.word_at(0), RECORD_SIZE_WORDS);
            self.access.endpoint.execute(batch).await?;
            let mut words = [0; RECORD_SIZE_WORDS];
            words.copy_from_slice(batch.words(read));
            let record = SubModelRecord::decode(&words, place, self.access.table);
            if record.is_some() {
                return Ok(record);
            }
        }
        Ok(None)
    }

    /// Returns the sub-model with as much of its table as the session caches.
    async fn fetched(
        &self,
        batch: &mut Batch,
        number: u32,
        record: SubModelRecord,
    ) -> Result<Arc<CachedSubModel>, IndexError> {
        let mut sub_model = CachedSubModel {
            record,
            table: Vec::new(),
        };
        let keeps_table = {
            let layer = self.state.layer.borrow();
            layer
                .as_xstore()
                .is_some_and(|layer| layer.cache().keeps_tables())
        };
        let count = record.model.piece_count() as usize;
        if keeps_table && count <= TABLE_LENGTH_MAX {
            batch.clear();
            let read = batch.read(record.table.word_at(0), count);
            self.access.endpoint.execute(batch).await?;
            sub_model.table = sound_entries(self.access.layout, batch.words(read));
        }
        Ok(match self.state.layer.borrow_mut().as_xstore_mut() {
            Some(layer) => layer.keep(number, sub_model),
            None => Arc::new(sub_model),
        })
    }

    /// Returns the leaves from a key on that models lead to: those that it may be in, and up to
    /// `count_max` after them, as far as they are held. Empty if only the table's first leaf is
    /// known.
    pub(super) async fn model_leaves(
        &self,
        batch: &mut Batch,
        key: u64,
        count_max: usize,
    ) -> Result<Vec<RemoteAddr>, IndexError> {
        let wanted = self.candidates_by_models(batch, key).await?;
        let held = {
            let layer = self.state.layer.borrow();
            layer
                .as_xstore()
                .map(|layer| layer.leaves_from(key, count_max))
        };
        let held = held.unwrap_or_default();
        if !held.is_empty() {
            return Ok(held);
        }
        let wanted = wanted.unwrap_or_default().leaves.into_iter();
        Ok(wanted.map(|leaf| leaf.addr).collect())
    }

    /// Returns whether the planted bug "models are trusted" is on: a key that is not in the leaf
    /// that its model led to counts as absent.
    pub(super) fn trusts_models(&self) -> bool {
        self.is_xstore() && self.skips_check(ProtocolCheck::ModelsAreHints)
    }
}
