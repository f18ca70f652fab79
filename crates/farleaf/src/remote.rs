//! Operations on tables whose records the memory node holds (`rpc`): a call each.

use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::LoadError;
use farleaf_index::load::LoadSummary;
use farleaf_index::operation::ScanCursor;
use farleaf_index::rpc::{
    Change, Failure, LOAD_PART_COUNT_MAX, MULTI_GET_COUNT_MAX, Reply, Request, SCAN_COUNT_MAX,
};
use farleaf_message::CallError;
use farleaf_types::NodeId;

use crate::async_table::Rare;
use crate::host::Host;
use crate::{AsyncTable, Error, ErrorKind};

/// Records that a load has sent when it says how far it is.
const PROGRESS_COUNT: u64 = 1 << 14;

impl<H: Host> AsyncTable<H> {
    /// Whether the memory node executes the operations.
    #[inline]
    pub(crate) fn is_remote(&self) -> bool {
        self.state.is_remote
    }

    /// One call, as an operation that has begun. `value_count`: how many values or records room is
    /// announced for.
    async fn ask(
        &self,
        kind: OperationKind,
        request: &Request,
        value_count: usize,
    ) -> Result<Reply, Error> {
        let mut batch = self.session.take_batch();
        let size_bytes = Reply::size_bytes(value_count);
        let reply = self.exchange(&mut batch, request, size_bytes).await;
        self.session.finish(kind, batch);
        reply
    }

    /// One call, as part of an operation: room of `reply_size_bytes` is announced.
    pub(crate) async fn exchange(
        &self,
        batch: &mut Batch,
        request: &Request,
        reply_size_bytes: usize,
    ) -> Result<Reply, Error> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        request.encode(self.state.entry.record.id, &mut bytes);
        let room = (reply_size_bytes, &mut reply);
        self.session.call(batch, &bytes, room).await?;
        match Reply::decode(&reply) {
            Ok(Reply::Failed(failure)) => Err(self.failed(failure)),
            Ok(Reply::NodeLost(NodeId(number))) => Err(ErrorKind::NodeLost { number }.into()),
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
            Failure::PoolFull => ErrorKind::NoLeaf { name: name() },
            Failure::Unsound => ErrorKind::LoadGivenUp { name: name() },
            // Its catalog said otherwise when the table was opened, and never changes that.
            Failure::OfLeaves => ErrorKind::BadReply("that the table's records are not its own"),
            Failure::OfOtherKind => ErrorKind::BadReply("that the table is of another kind"),
        }
        .into()
    }

    pub(crate) fn get_remote(&self, key: u64) -> Rare<'_, Option<u64>> {
        Box::pin(async move {
            let _begun = self.session.begin_slowly(&self.state).await?;
            match self.ask(OperationKind::Get, &Request::Get(key), 1).await? {
                Reply::Found(value) => Ok(value),
                _ => Err(other_reply()),
            }
        })
    }

    pub(crate) fn multi_get_remote<'a>(
        &'a self,
        keys: &'a [u64],
        values: &'a mut Vec<Option<u64>>,
    ) -> Rare<'a, ()> {
        Box::pin(async move {
            let _begun = self.session.begin_slowly(&self.state).await?;
            values.clear();
            for keys in keys.chunks(MULTI_GET_COUNT_MAX) {
                let request = Request::MultiGet(keys.to_vec());
                match self
                    .ask(OperationKind::MultiGet, &request, keys.len())
                    .await?
                {
                    Reply::Several(several) if several.len() == keys.len() => {
                        values.extend(several);
                    }
                    _ => return Err(other_reply()),
                }
            }
            Ok(())
        })
    }

    /// What was there before.
    pub(crate) fn change_remote(
        &self,
        kind: OperationKind,
        key: u64,
        change: Change,
    ) -> Rare<'_, Option<u64>> {
        Box::pin(async move {
            let _begun = self.session.begin_slowly(&self.state).await?;
            match self.ask(kind, &self.change_request(key, change), 1).await? {
                Reply::Found(found) => Ok(found),
                _ => Err(other_reply()),
            }
        })
    }

    pub(crate) fn scan_remote<'a>(
        &'a self,
        cursor: &'a mut ScanCursor,
        wanted: usize,
        records: &'a mut Vec<(u64, u64)>,
    ) -> Rare<'a, ()> {
        Box::pin(async move {
            let _begun = self.session.begin_slowly(&self.state).await?;
            let end = records.len() + wanted;
            while let Some(from) = cursor.next_key() {
                let limit = ((end - records.len()) as u64).min(SCAN_COUNT_MAX);
                if limit == 0 {
                    break;
                }
                let request = Request::Scan { from, limit };
                let reply = self
                    .ask(OperationKind::Scan, &request, limit as usize)
                    .await?;
                let Reply::Records(found) = reply else {
                    return Err(other_reply());
                };
                let ascends = found.is_sorted_by(|one, next| one.0 < next.0)
                    && found.first().is_none_or(|first| first.0 >= from)
                    && found.len() as u64 <= limit;
                if !ascends {
                    return Err(other_reply());
                }
                let last = found.last().filter(|_| found.len() as u64 == limit);
                *cursor = match last.and_then(|last| last.0.checked_add(1)) {
                    Some(next) => ScanCursor::from(next),
                    None => ScanCursor::at_end(),
                };
                records.extend(found);
            }
            Ok(())
        })
    }

    /// How many records there are.
    pub(crate) fn count_remote(&self) -> Rare<'_, u64> {
        Box::pin(async move {
            let _begun = self.session.begin_slowly(&self.state).await?;
            match self.ask(OperationKind::Control, &Request::Count, 1).await? {
                Reply::Count(count) => Ok(count),
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
        let _begun = session.begin_slowly(state).await?;
        session.check_live(state).await?;
        let load = session.next_load();
        let sent = self.send_parts(load, records, progress).await;
        let loaded = match sent {
            Ok(0) => return Ok(LoadSummary::default()),
            Ok(record_count) => {
                let commit = Request::LoadCommit { load, record_count };
                let loaded = self.ask(OperationKind::BulkLoad, &commit, 1).await;
                loaded.map(|_| record_count)
            }
            Err(error) => Err(error),
        };
        match loaded {
            Ok(record_count) => {
                // A load takes long; were it dropped meanwhile, what was loaded is gone with it.
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
                    // If that fails, the node forgets the load with the session.
                    let drop = Request::LoadDrop { load };
                    let _ = self.ask(OperationKind::BulkLoad, &drop, 1).await;
                }
                Err(error)
            }
        }
    }

    /// How many records were sent.
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
            let request = Request::LoadPart {
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

/// What came is a reply, and not to that.
#[cold]
pub(crate) fn other_reply() -> Error {
    ErrorKind::BadReply("a reply to something else").into()
}
