//! How a client finds leaves by models of the memory node (Y1, Y6). With any other search layer
//! nothing here posts anything.

use core::cell::Cell;
use std::sync::Arc;

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::{Course, Look};
use farleaf_region::PoolLayout;
use farleaf_types::RemoteAddr;

use super::{Index, IndexState};
use crate::IndexError;
use crate::hint::Candidates;
use crate::layer::Layer;
use crate::xstore::layer::{CachedSubModel, Need, TABLE_LENGTH_MAX, candidates, indices, narrow};
use crate::xstore::record::RECORD_SIZE_WORDS;
use crate::xstore::{Generation, ModelHead, ModelVersion, Place, SubModelRecord};

/// Words of a top model that go over the fabric with one verb.
const TRANSFER_SIZE_WORDS: usize = 64 << 10;
const _: () = assert!(TRANSFER_SIZE_WORDS.is_multiple_of(RECORD_SIZE_WORDS));

/// Torn records are read again so often: the node writes one at a time.
const TORN_COUNT_MAX: u32 = 4;

impl IndexState {
    /// What the session goes by for a key: what the node has to know to answer with what is newer.
    pub fn model_version_for(&self, key: u64) -> ModelVersion {
        let layer = self.layer.borrow();
        let layer = layer.as_xstore();
        layer.map_or_else(ModelVersion::default, |layer| layer.version_for(key))
    }

    /// Where a key most probably is, as a write may tell the node (Y7).
    pub fn model_place_of(&self, key: u64) -> Option<Place> {
        self.layer.borrow().as_xstore()?.place_of(key)
    }

    /// The node has told of a newer sub-model.
    pub fn take_sub_model(&self, number: u32, sub_model: CachedSubModel) {
        if let Some(layer) = self.layer.borrow_mut().as_xstore_mut() {
            layer.keep(number, sub_model);
        }
    }

    /// The node has told that there is a newer sub-model, which the session is to read.
    pub fn forget_sub_model(&self, number: u32) {
        if let Some(layer) = self.layer.borrow_mut().as_xstore_mut() {
            layer.forget(number);
        }
    }

    /// Where a sub-model's record is, by what the session knows of all.
    pub fn sub_model_record(&self, number: u32) -> Option<RemoteAddr> {
        let layer = self.layer.borrow();
        let head = layer.as_xstore()?.head()?;
        (number < head.sub_model_count).then(|| head.record(number))
    }

    /// The node was asked for a key (Y6).
    pub fn note_fallback(&self) {
        self.count_hint(|counters| counters.fallback_count += 1);
    }

    /// Whether operations follow one link before the node is asked (Y6).
    pub fn set_speculative(&self, is_speculative: bool) {
        self.is_speculative.set(is_speculative);
    }

    /// The layer of a session of the node looks for the next key in this leaf first.
    pub fn suggest(&self, leaf: RemoteAddr) {
        if let Layer::Inner(layer) = &*self.layer.borrow() {
            layer.suggest(leaf);
        }
    }

    /// Lower fences of leaves that a session of the node has added to its tree.
    pub fn take_added_leaves(&self) -> Vec<u64> {
        match &mut *self.layer.borrow_mut() {
            Layer::Inner(layer) => layer.take_added(),
            _ => Vec::new(),
        }
    }
}

/// While it lives, the session's operations go on by links for as long as it takes.
pub(super) struct Patient<'a>(&'a Cell<u32>);

impl Drop for Patient<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl IndexState {
    /// For who looks at all leaves, and needs no model to find them.
    pub(super) fn patiently(&self) -> Patient<'_> {
        self.patient_count.set(self.patient_count.get() + 1);
        Patient(&self.patient_count)
    }
}

/// The entries of a translation table, of which those that name no place in a chunk are null.
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

    /// Y6: one link, and then the node.
    #[inline]
    pub(super) fn check_way(
        &self,
        course: &Course,
        key: u64,
        look: Look,
    ) -> Result<(), IndexError> {
        if !matches!(&*self.state.layer.borrow(), Layer::Xstore(_)) {
            return Ok(());
        }
        let link_count_max = u32::from(self.state.is_speculative.get());
        let goes_on = matches!(look, Look::Right(_)) && course.link_count <= link_count_max;
        if goes_on || self.state.patient_count.get() > 0 {
            return Ok(());
        }
        Err(IndexError::FallBack { key })
    }

    /// The leaf that covers a key, and the key's value. One round trip when the hint is right.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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
            Look::Here => Ok((hint.addr, image.get(key))),
            look => {
                let (hint, leaf) = self.walk(batch, key, hint, look).await?;
                Ok((hint.addr, leaf.image().get(key)))
            }
        }
    }

    /// The leaves to read for a key; what is not cached of the models is read before, a round trip
    /// for the sub-model and one for its table, or for the entries that are wanted.
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
            Need::Nothing(found) => return Ok(Some(found)),
            Need::Node => return Err(fall_back()),
            Need::Entries(sub_model) => sub_model,
            Need::Record {
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

    /// The node has told of newer models: reads the top model, unless another session of the
    /// process has, and goes by it from then on. One round trip for 16,384 lines. If what is there
    /// is not what was told of, there is something newer still, which the node tells of when it is
    /// asked the next time.
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
        // Each block says whose it is: who tells of more lines than there are has this session read
        // one transfer in vain.
        let size_words = head.lines_size_words();
        let mut lines = Vec::new();
        for from in (0..size_words).step_by(TRANSFER_SIZE_WORDS) {
            let count = (size_words - from).min(TRANSFER_SIZE_WORDS);
            batch.clear();
            let read = batch.read(head.records.word_at(from as u64), count);
            self.access.endpoint.execute(batch).await?;
            let first_block = (from / RECORD_SIZE_WORDS) as u64;
            let blocks = (first_block, batch.words(read));
            if head
                .take_lines(blocks, self.access.table, &mut lines)
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

    /// A sub-model's record; `None`: it stays torn, or is of another generation or table.
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

    /// The sub-model with as much of its table as the session caches.
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

    /// The leaves from a key on that models lead to: those that it may be in, and so many behind
    /// them, as far as they are held. Empty: nothing is known but where the table begins.
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

    /// The planted bug that a model is trusted: what is not in the leaf that it led to is absent.
    pub(super) fn trusts_models(&self) -> bool {
        self.is_xstore() && self.leaves_out(ProtocolCheck::ModelsAreHints)
    }
}
