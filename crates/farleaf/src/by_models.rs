//! Operations on tables whose leaves the memory node changes (`xstore`; Y1 to Y7 of
//! `farleaf_index::xstore`): reads by models that it has trained, writes by calls, and calls for
//! what the models do not lead to.

use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::IndexError;
use farleaf_index::operation::{Elsewhere, ScanCursor, sound_entries};
use farleaf_index::rpc::{Change, Looked, ModelNews, Reply, Request};
use farleaf_index::xstore::SubModelRecord;
use farleaf_index::xstore::layer::CachedSubModel;
use farleaf_types::BLOCK_SIZE_BYTES;

use crate::async_table::Rare;
use crate::at_once::Rest;
use crate::host::Host;
use crate::remote::other_reply;
use crate::{AsyncTable, Error, ErrorKind};

/// Keys of a `multi_get` that are read together.
const PART_COUNT: usize = 256;
/// How often newer models are taken for a part of a `multi_get`.
const RENEWAL_COUNT_MAX: u32 = 3;

/// How often a scan asks for one key: its leaf may split between the answer and the READ.
const ASKED_COUNT_MAX: u32 = 64;

/// Room that is announced for a value and a sub-model of usual size, in bytes; what is larger costs
/// another call (E6).
const LOOKED_SIZE_BYTES: usize = 1024;

impl<H: Host> AsyncTable<H> {
    /// Whether the memory node executes the writes, and reads are this session's.
    #[inline]
    pub(crate) fn has_node_writes(&self) -> bool {
        self.state.has_node_writes
    }

    /// Y6: asks the node for a key, and takes what it has that is newer.
    async fn look_up(&self, batch: &mut Batch, key: u64) -> Result<Looked, Error> {
        let index = &self.state.index;
        index.note_fallback();
        let known = index.model_version_for(key);
        let request = Request::LookUp(key, known);
        match self.exchange(batch, &request, LOOKED_SIZE_BYTES).await? {
            Reply::Looked(looked) => {
                // Another call of this session may have brought newer models meanwhile: what is
                // told of a sub-model of the older ones is of no use.
                let is_older = matches!(looked.news, ModelNews::SubModel { .. })
                    && index.model_version_for(key).generation != known.generation;
                if !is_older {
                    self.take_news(batch, &looked.news).await?;
                }
                Ok(*looked)
            }
            _ => Err(other_reply()),
        }
    }

    async fn take_news(&self, batch: &mut Batch, news: &ModelNews) -> Result<(), Error> {
        let (index, layout) = (&self.state.index, self.session.layout());
        match news {
            ModelNews::None => {}
            ModelNews::Head(head) => {
                // Whoever says that there are more would have this session make room for them.
                let block_count = layout.home().superblock.size_bytes / BLOCK_SIZE_BYTES;
                let is_inside = head.records.block() + head.block_count() <= block_count;
                if layout.chunk_of(head.records.place()).is_none() || !is_inside {
                    return Err(ErrorKind::BadReply("models outside of its memory").into());
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
                let record = record.ok_or(ErrorKind::BadReply("a sub-model that is none"))?;
                let length = record.model.piece_count() as usize;
                if table.is_empty() {
                    // It is long, and read when it is needed.
                    index.forget_sub_model(*number);
                    return Ok(());
                }
                if table.len() != length || layout.chunk_of(record.table).is_none() {
                    return Err(ErrorKind::BadReply("half of a translation table").into());
                }
                let table = sound_entries(layout, table);
                index.take_sub_model(*number, CachedSubModel { record, table });
            }
        }
        Ok(())
    }

    /// A get that one leaf has not answered.
    pub(crate) fn get_by_models<'a>(
        &'a self,
        key: u64,
        rest: Rest<'a, Elsewhere>,
    ) -> Rare<'a, Option<u64>> {
        Box::pin(async move {
            let (begun, elsewhere) = match rest {
                Rest::Elsewhere(begun, elsewhere) => (begun, Some(elsewhere)),
                Rest::All => (self.session.begin_slowly(&self.state).await?, None),
            };
            let mut operation = self.operation(begun);
            let (index, batch) = (operation.index, &mut *operation.batch);
            let read = match elsewhere {
                Some(elsewhere) => index.get_elsewhere(batch, key, elsewhere).await,
                None => index.get(batch, key).await,
            };
            let value = match read {
                Err(IndexError::FallBack { .. }) => {
                    self.look_up(batch, key).await.map(|looked| looked.found)
                }
                read => read.map_err(|error| self.error(error)),
            };
            operation.end(OperationKind::Get);
            value
        })
    }

    /// A part of the keys at once, if models lead to all of it, perhaps with what the node has that
    /// is newer; else one by one.
    pub(crate) fn multi_get_by_models<'a>(
        &'a self,
        keys: &'a [u64],
        values: &'a mut Vec<Option<u64>>,
    ) -> Rare<'a, ()> {
        Box::pin(async move {
            let begun = self.session.begin_slowly(&self.state).await?;
            let mut operation = self.operation(begun);
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

    pub(crate) fn scan_by_models<'a>(
        &'a self,
        cursor: &'a mut ScanCursor,
        wanted: usize,
        records: &'a mut Vec<(u64, u64)>,
    ) -> Rare<'a, ()> {
        Box::pin(async move {
            let end = records.len() + wanted;
            let from = cursor.next_key().unwrap_or(0);
            let begun = self.session.begin_slowly(&self.state).await?;
            let mut operation = self.operation(begun);
            let batch = &mut *operation.batch;
            // The key that the node was asked for last, and how often it was before.
            let mut asked = (from, 0);
            let scanned = loop {
                let left = end.saturating_sub(records.len());
                match self.index().scan(batch, cursor, left, records).await {
                    Err(IndexError::FallBack { key }) => match self.look_up(batch, key).await {
                        Ok(looked) => {
                            let leaf = looked.leaf.place();
                            asked = (key, if asked.0 == key { asked.1 + 1 } else { 0 });
                            let is_known = self.session.layout().chunk_of(leaf).is_some();
                            if !is_known || asked.1 > ASKED_COUNT_MAX {
                                break Err(ErrorKind::BadReply("a key in no leaf").into());
                            }
                            self.index().go_on_at(cursor, leaf);
                        }
                        Err(error) => break Err(error),
                    },
                    scanned => break scanned.map_err(|error| self.error(error)),
                }
            };
            operation.end(OperationKind::Scan);
            scanned
        })
    }

    fn error(&self, error: IndexError) -> Error {
        Error::from(error).of_table(&self.state.info.name)
    }

    /// A write, as the node is asked for it: with the place where the key is expected, if there is
    /// one (Y7).
    pub(crate) fn change_request(&self, key: u64, change: Change) -> Request {
        match self.state.index.model_place_of(key) {
            Some(place) if self.has_node_writes() => Request::ChangeAt(key, change, place),
            _ => Request::Change(key, change),
        }
    }
}
