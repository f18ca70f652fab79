//! Operations on tables whose records the memory node stores (`rpc`): one call each.

use farleaf_base::NodeId;
use farleaf_fabric::message::CallError;
use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::LoadError;
use farleaf_index::load::LoadSummary;
use farleaf_index::rpc::{
    Change, Failure, LOAD_PART_COUNT_MAX, MULTI_GET_COUNT_MAX, SCAN_COUNT_MAX, WordReply,
    WordRequest,
};

use crate::async_table::SlowPathFuture;
use crate::direction::DirectedCursor;
use crate::host::SessionHost;
use crate::{AsyncTable, Error, ErrorKind};

/// Records that a load sends between two progress reports.
const PROGRESS_COUNT: u64 = 1 << 14;

impl<H: SessionHost> AsyncTable<H> {
    /// Returns whether the memory node executes the operations.
    #[inline]
    pub(crate) fn is_remote(&self) -> bool {
        self.state.is_remote
    }

    /// Makes one call as an operation that has begun. The reply has space for `value_count` values
    /// or records.
    async fn ask(
        &self,
        kind: OperationKind,
        request: &WordRequest,
        value_count: usize,
    ) -> Result<WordReply, Error> {
        let mut batch = self.session.take_batch();
        let size_bytes = WordReply::size_bytes(value_count);
        let reply = self.exchange(&mut batch, request, size_bytes).await;
        self.session.finish(kind, batch);
        reply
    }

    /// Makes one call as part of an operation. The reply has `reply_size_bytes` of space.
    pub(crate) async fn exchange(
        &self,
        batch: &mut Batch,
        request: &WordRequest,
        reply_size_bytes: usize,
    ) -> Result<WordReply, Error> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        request.encode(self.state.entry.record.id, &mut bytes);
        self.session
            .call(batch, &bytes, reply_size_bytes, &mut reply)
            .await?;
        match WordReply::decode(&reply) {
            Ok(WordReply::Failed(failure)) => Err(self.failed(failure)),
            Ok(WordReply::NodeLost(NodeId(number))) => Err(ErrorKind::NodeLost { number }.into()),
            Ok(reply) => Ok(reply),
            Err(bad) => Err(ErrorKind::BadReply(bad.text()).into()),
        }
    }

    fn failed(&self, failure: Failure) -> Error {
        let name = || self.info().name.clone();
        match failure {
            Failure::Dropped => ErrorKind::TableDropped { name: name() },
            Failure::NotEmpty => ErrorKind::Load(LoadError::TableNotEmpty),
            Failure::Full => ErrorKind::NodeFull,
            Failure::PoolFull => ErrorKind::PoolFullForLeaf { name: name() },
            Failure::Unsound => ErrorKind::LoadDiscarded { name: name() },
            // The catalog contradicted this when the table was opened, and a table's kind never
            // changes.
            Failure::OfLeaves => {
                ErrorKind::BadReply("the node does not store the table's records itself")
            }
            Failure::OfOtherKind => ErrorKind::BadReply("the table is of another kind"),
        }
        .into()
    }

    pub(crate) fn get_remote(&self, key: u64) -> SlowPathFuture<'_, Option<u64>> {
        Box::pin(async move {
            let _guard = self.session.begin_on_slow_path(&self.state).await?;
            match self
                .ask(OperationKind::Get, &WordRequest::Get(key), 1)
                .await?
            {
                WordReply::Found(value) => Ok(value),
                _ => Err(other_reply()),
            }
        })
    }

    pub(crate) fn multi_get_remote<'a>(
        &'a self,
        keys: &'a [u64],
        values: &'a mut Vec<Option<u64>>,
    ) -> SlowPathFuture<'a, ()> {
        Box::pin(async move {
            let _guard = self.session.begin_on_slow_path(&self.state).await?;
            values.clear();
            for keys in keys.chunks(MULTI_GET_COUNT_MAX) {
                let request = WordRequest::MultiGet(keys.to_vec());
                match self
                    .ask(OperationKind::MultiGet, &request, keys.len())
                    .await?
                {
                    WordReply::Several(several) if several.len() == keys.len() => {
                        values.extend(several);
                    }
                    _ => return Err(other_reply()),
                }
            }
            Ok(())
        })
    }

    /// Executes a write and returns the previous value.
    pub(crate) fn change_remote(
        &self,
        kind: OperationKind,
        key: u64,
        change: Change,
    ) -> SlowPathFuture<'_, Option<u64>> {
        Box::pin(async move {
            let _guard = self.session.begin_on_slow_path(&self.state).await?;
            match self.ask(kind, &self.change_request(key, change), 1).await? {
                WordReply::Found(found) => Ok(found),
                _ => Err(other_reply()),
            }
        })
    }

    pub(crate) fn scan_remote<'a, C: DirectedCursor>(
        &'a self,
        cursor: &'a mut C,
        wanted: usize,
        records: &'a mut Vec<(u64, u64)>,
    ) -> SlowPathFuture<'a, ()> {
        Box::pin(async move {
            let _guard = self.session.begin_on_slow_path(&self.state).await?;
            let end = records.len().saturating_add(wanted);
            while let Some(from) = cursor.next_key() {
                let limit = ((end - records.len()) as u64).min(SCAN_COUNT_MAX);
                if limit == 0 {
                    break;
                }
                let request = C::request(from, limit);
                let reply = self
                    .ask(OperationKind::Scan, &request, limit as usize)
                    .await?;
                let WordReply::Records(found) = reply else {
                    return Err(other_reply());
                };
                let is_in_order = found.is_sorted_by(|one, next| C::precedes(one.0, next.0))
                    && found
                        .first()
                        .is_none_or(|first| !C::precedes(first.0, from))
                    && found.len() as u64 <= limit;
                if !is_in_order {
                    return Err(other_reply());
                }
                let last = found.last().filter(|_| found.len() as u64 == limit);
                *cursor = match last.and_then(|last| C::key_behind(last.0)) {
                    Some(next) => C::from(next),
                    None => C::at_end(),
                };
                records.extend(found);
            }
            Ok(())
        })
    }

    /// Returns the number of records.
    pub(crate) fn count_remote(&self) -> SlowPathFuture<'_, u64> {
        Box::pin(async move {
            let _guard = self.session.begin_on_slow_path(&self.state).await?;
            match self
                .ask(OperationKind::Control, &WordRequest::Count, 1)
                .await?
            {
                WordReply::Count(count) => Ok(count),
                _ => Err(other_reply()),
            }
        })
    }

    pub(crate) async fn load_remote(
        &self,
        records: impl Iterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        let (session, state) = (&self.session, &self.state);
        let _guard = session.begin_on_slow_path(state).await?;
        session.check_live(state).await?;
        let load = session.next_load();
        let sent = self.send_parts(load, records, progress).await;
        let loaded = match sent {
            Ok(0) => return Ok(LoadSummary::default()),
            Ok(record_count) => {
                let commit = WordRequest::LoadCommit { load, record_count };
                let loaded = self.ask(OperationKind::BulkLoad, &commit, 1).await;
                loaded.map(|_| record_count)
            }
            Err(error) => Err(error),
        };
        match loaded {
            Ok(record_count) => {
                // Loads take long. If the table was dropped meanwhile, the loaded records are gone
                // with it.
                session.check_live(state).await?;
                Ok(LoadSummary {
                    record_count,
                    ..LoadSummary::default()
                })
            }
            Err(error) => {
                let may_answer = match error.kind() {
                    ErrorKind::Call(error) => matches!(error, CallError::Refused { .. }),
                    ErrorKind::Fabric(_) | ErrorKind::SessionBroken => false,
                    _ => true,
                };
                if may_answer {
                    // If this fails, the node discards the load when the session ends.
                    let drop = WordRequest::LoadDrop { load };
                    let _ = self.ask(OperationKind::BulkLoad, &drop, 1).await;
                }
                Err(error)
            }
        }
    }

    /// Sends all records and returns their number.
    async fn send_parts(
        &self,
        load: u64,
        records: impl Iterator<Item = (u64, u64)>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let mut records = records.enumerate();
        let (mut previous, mut sent_count) = (None::<u64>, 0);
        loop {
            let mut part = Vec::with_capacity(LOAD_PART_COUNT_MAX);
            for (index, (key, value)) in records.by_ref().take(LOAD_PART_COUNT_MAX) {
                if let Some(previous) = previous.filter(|previous| key <= *previous) {
                    return Err(LoadError::NotAscending {
                        index: index as u64,
                        key,
                        previous,
                    }
                    .into());
                }
                previous = Some(key);
                part.push((key, value));
            }
            if part.is_empty() {
                return Ok(sent_count);
            }
            let count = part.len() as u64;
            let request = WordRequest::LoadPart {
                load,
                records: part,
            };
            self.ask(OperationKind::BulkLoad, &request, 1).await?;
            if sent_count / PROGRESS_COUNT != (sent_count + count) / PROGRESS_COUNT {
                progress(sent_count + count);
            }
            sent_count += count;
        }
    }
}

/// Returns the error for a valid reply that does not match the request.
#[cold]
pub(crate) fn other_reply() -> Error {
    ErrorKind::BadReply("a reply that does not match the request").into()
}
