//! Executes requests about tables of byte strings in the node's own memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use farleaf_base::locks::{read, write};
use farleaf_base::{OwnerWord, TableId};
use farleaf_index::rpc::Failure;
use farleaf_index::rpc::bytes::{
    ByteChange, ByteCondition, ByteRange, ByteReply, ByteRequest, FoundValue, Packing,
    ReplyCapacity, SentValue,
};

use super::byte_records::{
    ByteTableRecords, Change, Changed, Condition, OfferedValue, PackedValue,
};
use super::memory_limit::MemoryLimit;
use super::transfers::{Transfer, TransferId, Transfers};

/// Table, and its entry in the catalog.
#[derive(Debug)]
pub(super) struct ServedByteTable {
    id: TableId,
    entry: u64,
    records: ByteTableRecords,
    /// Set when the table has been dropped: only requests that have already begun still use it.
    is_dropped: AtomicBool,
}

/// All tables of byte strings in the node's own memory.
#[derive(Debug)]
pub(super) struct ByteTables {
    tables: RwLock<BTreeMap<TableId, Arc<ServedByteTable>>>,
    transfers: Transfers,
    memory_limit: Arc<MemoryLimit>,
}

impl ByteTables {
    /// Creates an empty set of tables, which share this memory limit.
    pub(super) fn new(memory_limit: Arc<MemoryLimit>) -> Self {
        Self {
            tables: RwLock::default(),
            transfers: Transfers::default(),
            memory_limit,
        }
    }

    /// Returns a table that has been requested before.
    pub(super) fn get(&self, id: TableId) -> Option<Arc<ServedByteTable>> {
        read(&self.tables).get(&id).cloned()
    }

    /// Adds a table that the catalog has in this entry.
    pub(super) fn add(&self, id: TableId, entry: u64) -> Arc<ServedByteTable> {
        let mut tables = write(&self.tables);
        let table = tables.entry(id).or_insert_with(|| {
            Arc::new(ServedByteTable {
                id,
                entry,
                records: ByteTableRecords::new(Arc::clone(&self.memory_limit)),
                is_dropped: AtomicBool::new(false),
            })
        });
        Arc::clone(table)
    }

    /// Returns all tables with their catalog entries.
    pub(super) fn all(&self) -> Vec<(TableId, u64)> {
        let tables = read(&self.tables);
        tables.values().map(|it| (it.id, it.entry)).collect()
    }

    /// Removes a dropped table; returns how many records it had, if it was in this set.
    pub(super) fn forget(&self, id: TableId) -> Option<u64> {
        let dropped = { write(&self.tables).remove(&id) };
        let dropped = dropped?;
        dropped.is_dropped.store(true, Ordering::SeqCst);
        self.forget_transfers_of(id);
        Some(dropped.records.count())
    }

    fn forget_transfers_of(&self, id: TableId) {
        self.transfers.forget_all(|_, table| table == id);
    }

    /// Drops all transfers of a fenced session.
    pub(super) fn drop_session(&self, session: OwnerWord) {
        self.transfers.drop_session(session);
    }

    /// Drops a session's transfers below a number; the session will not use them any more.
    pub(super) fn forget_below(&self, session: OwnerWord, number: u64) {
        self.transfers.forget_below(session, number);
    }

    /// Drops a transfer that a session has released.
    pub(super) fn forget_transfer(&self, session: OwnerWord, number: u64) {
        self.transfers.forget(session, number);
    }

    /// Executes a request and writes the reply into `bytes`.
    pub(super) fn execute(
        &self,
        table: &ServedByteTable,
        session: OwnerWord,
        request: ByteRequest<'_>,
        bytes: &mut Vec<u8>,
    ) {
        let errand = ByteRequestContext {
            tables: self,
            table,
            session,
        };
        if let Err(failure) = errand.run(request, bytes) {
            ByteReply::Failed(failure).encode(bytes);
        }
        // This request may have added a transfer after those of the table were dropped.
        if table.is_dropped.load(Ordering::SeqCst) {
            self.forget_transfers_of(table.id);
        }
    }
}

/// One request and its context.
struct ByteRequestContext<'a> {
    tables: &'a ByteTables,
    table: &'a ServedByteTable,
    session: OwnerWord,
}

impl ByteRequestContext<'_> {
    fn of(&self, number: u64) -> TransferId {
        TransferId {
            session: self.session,
            table: self.table.id,
            number,
        }
    }

    fn run(&self, request: ByteRequest<'_>, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let transfers = &self.tables.transfers;
        let count = match request {
            ByteRequest::Get { keys, capacity } => {
                self.get(&keys, capacity, bytes);
                return Ok(());
            }
            ByteRequest::Change { change, capacity } => {
                return self.change(change, capacity, bytes);
            }
            ByteRequest::Scan { range, capacity } => {
                self.scan(&range, capacity, bytes);
                return Ok(());
            }
            ByteRequest::Read { offset, capacity } => return self.read(offset, capacity, bytes),
            ByteRequest::Count => self.table.records.count(),
            ByteRequest::Stage {
                number,
                offset,
                whole_size_bytes,
                part,
            } => transfers.stage(
                self.of(number),
                offset,
                whole_size_bytes,
                part,
                &self.tables.memory_limit,
            )?,
            ByteRequest::LoadPart { number, records } => {
                let records = records.into_iter();
                let records = records.map(|(key, value)| Ok((key, self.offer(value)?)));
                let records: Vec<_> = records.collect::<Result<_, Failure>>()?;
                transfers.load(self.of(number), records)?
            }
            ByteRequest::LoadCommit {
                number,
                record_count,
            } => {
                let loaded = transfers.loaded(self.of(number), record_count)?;
                self.table.records.take_over(loaded)?
            }
            // It was dropped before the table was looked up.
            ByteRequest::Forget { .. } => 0,
        };
        ByteReply::Count(count).encode(bytes);
        Ok(())
    }

    fn get(&self, keys: &[&[u8]], capacity: ReplyCapacity, bytes: &mut Vec<u8>) {
        let mut packing = Packing::new(capacity.size_bytes as usize);
        let values = self.table.records.find(keys, &mut packing);
        self.hold(capacity, values.last().and_then(Option::as_ref));
        let values = values.iter().map(|value| value.as_ref().map(found));
        ByteReply::Values(values.collect()).encode(bytes);
    }

    fn scan(&self, range: &ByteRange<'_>, capacity: ReplyCapacity, bytes: &mut Vec<u8>) {
        let mut packing = Packing::new(capacity.size_bytes as usize);
        let scanned = self.table.records.scan(range, &mut packing);
        let value = |packed| {
            if range.of_keys {
                FoundValue::whole(&[])
            } else {
                found(packed)
            }
        };
        if !range.of_keys {
            self.hold(capacity, scanned.records.last().map(|(_, value)| value));
        }
        let records = scanned.records.iter();
        let records = records.map(|(key, packed)| (&**key, value(packed)));
        let reply = ByteReply::Records {
            records: records.collect(),
            is_end: scanned.is_end,
        };
        reply.encode(bytes);
    }

    fn change(
        &self,
        change: ByteChange<'_>,
        capacity: ReplyCapacity,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let value = change.value.map(|value| self.offer(value)).transpose()?;
        let expected = match change.condition {
            ByteCondition::IfEqual(Some(expected)) => Some(self.offer(expected)?),
            _ => None,
        };
        let condition = match change.condition {
            ByteCondition::Always => Condition::Always,
            ByteCondition::IfAbsent => Condition::IfAbsent,
            ByteCondition::IfPresent => Condition::IfPresent,
            ByteCondition::IfEqual(_) => {
                Condition::IfEqual(expected.as_ref().map(|expected| &*expected.bytes))
            }
        };
        let Changed {
            is_done,
            was_present,
            previous,
        } = self.table.records.change(Change {
            key: change.key,
            condition,
            value,
            wants_previous: change.wants_previous,
            capacity_bytes: capacity.size_bytes as usize,
        })?;
        let mut packing = Packing::new(capacity.size_bytes as usize);
        let previous = previous.map(|value| {
            let here = packing.take(None, value.bytes().len());
            (value, here.expect("it is the first one"))
        });
        self.hold(capacity, previous.as_ref());
        let reply = ByteReply::Changed {
            is_done,
            was_present,
            previous: previous.as_ref().map(found),
        };
        reply.encode(bytes);
        Ok(())
    }

    fn read(
        &self,
        offset: u32,
        capacity: ReplyCapacity,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let of = self.of(capacity.number);
        let Some(Transfer::Read(value)) = self.tables.transfers.find(of) else {
            return Err(Failure::Unsound);
        };
        let rest = value.bytes().get(offset as usize..);
        let rest = rest.filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(Failure::Unsound)?;
        // A part has a header of one word, and consists of whole words.
        let capacity_bytes = ((capacity.size_bytes as usize).saturating_sub(8) / 8 * 8).max(8);
        let part = &rest[..rest.len().min(capacity_bytes)];
        if part.len() == rest.len() {
            self.tables.transfers.take(of);
        }
        ByteReply::Part(part).encode(bytes);
        Ok(())
    }

    /// Holds the last value of a reply if it did not fit completely.
    fn hold(&self, capacity: ReplyCapacity, last: Option<&PackedValue>) {
        let is_cut = |(value, here): &&PackedValue| *here < value.bytes().len();
        if let Some((value, _)) = last.filter(is_cut) {
            let transfer = Transfer::Read(Arc::clone(value));
            // If the transfer is refused, the session will not read on either.
            let _ = self
                .tables
                .transfers
                .add(self.of(capacity.number), transfer);
        }
    }

    fn offer(&self, sent: SentValue<'_>) -> Result<OfferedValue, Failure> {
        match sent {
            SentValue::Here(value) => {
                Ok(OfferedValue::new(value, self.table.records.memory_limit()))
            }
            SentValue::Staged(number) => self.tables.transfers.staged(self.of(number)),
        }
    }
}

fn found((value, here): &PackedValue) -> FoundValue<'_> {
    FoundValue {
        here: &value.bytes()[..*here],
        whole_size_bytes: value.bytes().len() as u32,
    }
}

#[cfg(test)]
mod tests;
