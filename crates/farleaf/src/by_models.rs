//! Operations on tables whose leaves the memory node changes (`xstore`, see
//! `farleaf_index::xstore`). Reads use models that the node has trained, writes are calls, and keys
//! to which the models do not lead are read by calls.

use farleaf_base::{BLOCK_SIZE_BYTES, RemoteAddr};
use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::IndexError;
use farleaf_index::operation::{MissedLeaf, sound_entries};
use farleaf_index::rpc::{Change, LookUpReply, ModelNews, WordReply, WordRequest};
use farleaf_index::xstore::SubModelRecord;
use farleaf_index::xstore::layer::CachedSubModel;

use crate::async_table::SlowPathFuture;
use crate::at_once::RemainingRead;
use crate::direction::DirectedCursor;
use crate::host::SessionHost;
use crate::remote::other_reply;
use crate::{AsyncTable, Error, ErrorKind};

/// Keys of a `multi_get` that are read together.
const PART_COUNT: usize = 256;
/// Number of times that newer models are fetched for a part of a `multi_get`.
const RENEWAL_COUNT_MAX: u32 = 3;

/// Number of times that a scan looks up one key: its leaf may split between the reply and the READ.
const LOOKUP_COUNT_MAX: u32 = 64;

/// Bytes of reply space for a value and a sub-model of usual size; a larger reply costs another
/// call.
const LOOKUP_REPLY_SIZE_BYTES: usize = 1024;

/// Consecutive lookups of one key by a scan.
#[derive(Debug, Default)]
struct LeafLookups {
    key: Option<u64>,
    /// Number of lookups before the last one.
    count: u32,
}

impl<H: SessionHost> AsyncTable<H> {
    /// Returns whether the memory node executes the writes while this session executes the reads.
    #[inline]
    pub(crate) fn has_node_writes(&self) -> bool {
        self.state.has_node_writes
    }

    /// Looks a key up by a call, and caches newer models from the reply.
    async fn look_up(&self, batch: &mut Batch, key: u64) -> Result<LookUpReply, Error> {
        let index = &self.state.index;
        index.note_fallback();
        let known = index.model_version_for(key);
        let request = WordRequest::LookUp(key, known);
        match self
            .exchange(batch, &request, LOOKUP_REPLY_SIZE_BYTES)
            .await?
        {
            WordReply::LookUpReply(reply) => {
                // Another call of this session may have fetched newer models meanwhile; then a
                // sub-model of the older ones is useless.
                let is_older = matches!(reply.news, ModelNews::SubModel { .. })
                    && index.model_version_for(key).generation != known.generation;
                if !is_older {
                    self.cache_newer_models(batch, &reply.news).await?;
                }
                Ok(*reply)
            }
            _ => Err(other_reply()),
        }
    }

    async fn cache_newer_models(&self, batch: &mut Batch, news: &ModelNews) -> Result<(), Error> {
        let (index, layout) = (&self.state.index, self.session.layout());
        match news {
            ModelNews::None => {}
            ModelNews::Head(head) => {
                // Checked because an invalid count would make this session allocate too much
                // memory.
                let block_count = layout.main_node().superblock.size_bytes / BLOCK_SIZE_BYTES;
                let is_inside = head.records.block() + head.block_count() <= block_count;
                if layout.chunk_of(head.records.place()).is_none() || !is_inside {
                    return Err(ErrorKind::BadReply("models outside the pool's memory").into());
                }
                let taken = self.index().take_model_head(batch, *head).await;
                taken.map_err(|error| self.error(error))?;
            }
            ModelNews::SubModel {
                number,
                record,
                table,
            } => {
                let Some(place) = index.sub_model_record(*number) else {
                    return Err(ErrorKind::BadReply("a sub-model of unknown models").into());
                };
                let id = self.state.entry.record.id;
                let record = SubModelRecord::decode(record, place, id);
                let record = record.ok_or(ErrorKind::BadReply("an invalid sub-model"))?;
                let length = record.model.piece_count() as usize;
                if table.is_empty() {
                    // Too long for a reply; the session reads it when it is needed.
                    index.forget_sub_model(*number);
                    return Ok(());
                }
                if table.len() != length || layout.chunk_of(record.table).is_none() {
                    return Err(ErrorKind::BadReply("an invalid translation table").into());
                }
                let table = sound_entries(layout, table);
                index.take_sub_model(*number, CachedSubModel { record, table });
            }
        }
        Ok(())
    }

    /// Completes a get that did not end at its first leaf.
    pub(crate) fn get_by_models<'a>(
        &'a self,
        key: u64,
        rest: RemainingRead<'a, MissedLeaf>,
    ) -> SlowPathFuture<'a, Option<u64>> {
        Box::pin(async move {
            let (guard, elsewhere) = match rest {
                RemainingRead::MissedLeaf(guard, elsewhere) => (guard, Some(elsewhere)),
                RemainingRead::All => (self.session.begin_on_slow_path(&self.state).await?, None),
            };
            let mut operation = self.operation(guard);
            let (index, batch) = (operation.index, &mut *operation.batch);
            let read = match elsewhere {
                Some(elsewhere) => index.continue_get(batch, key, elsewhere).await,
                None => index.get(batch, key).await,
            };
            let value = match read {
                Err(IndexError::FallBack { .. }) => {
                    self.look_up(batch, key).await.map(|reply| reply.found)
                }
                read => read.map_err(|error| self.error(error)),
            };
            operation.end(OperationKind::Get);
            value
        })
    }

    /// Reads the keys in parts. A part is read in one batch if the models lead to all its keys, if
    /// necessary after fetching newer models; else key by key.
    pub(crate) fn multi_get_by_models<'a>(
        &'a self,
        keys: &'a [u64],
        values: &'a mut Vec<Option<u64>>,
    ) -> SlowPathFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.session.begin_on_slow_path(&self.state).await?;
            let mut operation = self.operation(guard);
            let mut part_values = Vec::new();
            let mut read = Ok(());
            values.clear();
            for part in keys.chunks(PART_COUNT) {
                read = self
                    .get_part(&mut operation.batch, part, &mut part_values)
                    .await;
                if read.is_err() {
                    break;
                }
                values.append(&mut part_values);
            }
            operation.end(OperationKind::MultiGet);
            read
        })
    }

    async fn get_part(
        &self,
        batch: &mut Batch,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), Error> {
        for _ in 0..RENEWAL_COUNT_MAX {
            match self.index().multi_get(batch, keys, values).await {
                Err(IndexError::FallBack { key }) => self.look_up(batch, key).await?,
                read => return read.map_err(|error| self.error(error)),
            };
        }
        values.clear();
        for key in keys {
            let read = self.index().get(batch, *key).await;
            values.push(match read {
                Err(IndexError::FallBack { .. }) => self.look_up(batch, *key).await?.found,
                read => read.map_err(|error| self.error(error))?,
            });
        }
        Ok(())
    }

    pub(crate) fn scan_by_models<'a, C: DirectedCursor>(
        &'a self,
        cursor: &'a mut C,
        wanted: usize,
        records: &'a mut Vec<(u64, u64)>,
    ) -> SlowPathFuture<'a, ()> {
        Box::pin(async move {
            let end = records.len().saturating_add(wanted);
            let mut lookups = LeafLookups::default();
            let guard = self.session.begin_on_slow_path(&self.state).await?;
            let mut operation = self.operation(guard);
            let batch = &mut *operation.batch;
            let scanned = loop {
                let left = end.saturating_sub(records.len());
                match cursor.read(&self.index(), batch, left, records).await {
                    Err(IndexError::FallBack { key }) => {
                        match self.look_up_leaf(batch, key, &mut lookups).await {
                            Ok(leaf) => cursor.set_leaf(&self.index(), leaf),
                            Err(error) => break Err(error),
                        }
                    }
                    scanned => break scanned.map_err(|error| self.error(error)),
                }
            };
            operation.end(OperationKind::Scan);
            scanned
        })
    }

    /// Asks the memory node for the leaf of a key that the models do not lead to.
    async fn look_up_leaf(
        &self,
        batch: &mut Batch,
        key: u64,
        lookups: &mut LeafLookups,
    ) -> Result<RemoteAddr, Error> {
        let leaf = self.look_up(batch, key).await?.leaf.place();
        lookups.count = if lookups.key == Some(key) {
            lookups.count + 1
        } else {
            0
        };
        lookups.key = Some(key);
        let is_known = self.session.layout().chunk_of(leaf).is_some();
        if !is_known || lookups.count > LOOKUP_COUNT_MAX {
            return Err(ErrorKind::BadReply("no valid leaf for a key").into());
        }
        Ok(leaf)
    }

    fn error(&self, error: IndexError) -> Error {
        Error::from(error).of_table(&self.state.info.name)
    }

    /// Returns the request for a write, with the key's expected leaf if a model predicts one.
    pub(crate) fn change_request(&self, key: u64, change: Change) -> WordRequest {
        match self.state.index.model_place_of(key) {
            Some(place) if self.has_node_writes() => WordRequest::ChangeAt(key, change, place),
            _ => WordRequest::Change(key, change),
        }
    }
}
