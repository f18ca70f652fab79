//! Requests about tables of byte strings that the node holds (J7 to J10).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use farleaf_index::rpc::Failure;
use farleaf_index::rpc::bytes::{
    ByteChange, ByteCondition, ByteRange, ByteReply, ByteRequest, Found, Packing, ReplyRoom, Sent,
};
use farleaf_types::{OwnerWord, TableId};

use super::byte_records::{ByteTableRecords, Change, Changed, Condition, Offer, Packed};
use super::room::Room;
use super::transfers::{Of, Transfer, Transfers};

/// A table, and its entry in the catalog.
#[derive(Debug)]
pub(super) struct ServedByteTable {
    id: TableId,
    entry: u64,
    records: ByteTableRecords,
    /// Nobody comes by it any more, but for requests that have begun.
    is_forgotten: AtomicBool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct ByteTables {
    tables: RwLock<BTreeMap<TableId, Arc<ServedByteTable>>>,
    transfers: Transfers,
    room: Arc<Room>,
}

impl ByteTables {
    /// None yet, which take of this room.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self {
            tables: RwLock::default(),
            transfers: Transfers::default(),
            room,
        }
    }

    fn tables(&self) -> RwLockReadGuard<'_, BTreeMap<TableId, Arc<ServedByteTable>>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A table that has been asked for before.
    pub(super) fn get(&self, id: TableId) -> Option<Arc<ServedByteTable>> {
        self.tables().get(&id).cloned()
    }

    /// J6: a table that the catalog has in this entry.
    pub(super) fn add(&self, id: TableId, entry: u64) -> Arc<ServedByteTable> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let table = tables.entry(id).or_insert_with(|| {
            Arc::new(ServedByteTable {
                id,
                entry,
                records: ByteTableRecords::new(Arc::clone(&self.room)),
                is_forgotten: AtomicBool::new(false),
            })
        });
        Arc::clone(table)
    }

    /// All, with their entries.
    pub(super) fn all(&self) -> Vec<(TableId, u64)> {
        let tables = self.tables();
        tables.values().map(|it| (it.id, it.entry)).collect()
    }

    /// J6: a table was dropped; how many records it had, if it was one of these.
    pub(super) fn forget(&self, id: TableId) -> Option<u64> {
        let dropped = {
            let tables = self.tables.write();
            tables.unwrap_or_else(PoisonError::into_inner).remove(&id)
        };
        let dropped = dropped?;
        dropped.is_forgotten.store(true, Ordering::SeqCst);
        self.forget_transfers_of(id);
        Some(dropped.records.count())
    }

    fn forget_transfers_of(&self, id: TableId) {
        self.transfers.forget_all(|_, table| table == id);
    }

    /// J8: the session is fenced.
    pub(super) fn forget_session(&self, session: OwnerWord) {
        self.transfers.forget_session(session);
    }

    /// J10: the session has said that it asks for nothing below this number any more.
    pub(super) fn forget_below(&self, session: OwnerWord, number: u64) {
        self.transfers.forget_below(session, number);
    }

    /// J8: what the session has said that it wants no more.
    pub(super) fn forget_transfer(&self, session: OwnerWord, number: u64) {
        self.transfers.forget(session, number);
    }

    /// Does what is asked, and writes the reply into `bytes`.
    pub(super) fn execute(
        &self,
        table: &ServedByteTable,
        session: OwnerWord,
        request: ByteRequest<'_>,
        bytes: &mut Vec<u8>,
    ) {
        let errand = Errand {
            tables: self,
            table,
            session,
        };
        if let Err(failure) = errand.run(request, bytes) {
            ByteReply::Failed(failure).encode(bytes);
        }
        // It may have added something after the others were forgotten.
        if table.is_forgotten.load(Ordering::SeqCst) {
            self.forget_transfers_of(table.id);
        }
    }
}

/// One request.
struct Errand<'a> {
    tables: &'a ByteTables,
    table: &'a ServedByteTable,
    session: OwnerWord,
}

impl Errand<'_> {
    fn of(&self, number: u64) -> Of {
        Of {
            session: self.session,
            table: self.table.id,
            number,
        }
    }

    fn run(&self, request: ByteRequest<'_>, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let transfers = &self.tables.transfers;
        let count = match request {
            ByteRequest::Get { keys, room } => {
                self.get(&keys, room, bytes);
                return Ok(());
            }
            ByteRequest::Change { change, room } => return self.change(change, room, bytes),
            ByteRequest::Scan { range, room } => {
                self.scan(&range, room, bytes);
                return Ok(());
            }
            ByteRequest::Read { offset, room } => return self.read(offset, room, bytes),
            ByteRequest::Count => self.table.records.count(),
            ByteRequest::Stage {
                number,
                offset,
                whole_size_bytes,
                part,
            } => {
                let sizes = (offset, whole_size_bytes);
                transfers.stage(self.of(number), sizes, part, &self.tables.room)?
            }
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
            // It was forgotten before the table was looked for.
            ByteRequest::Forget { .. } => 0,
        };
        ByteReply::Count(count).encode(bytes);
        Ok(())
    }

    fn get(&self, keys: &[&[u8]], room: ReplyRoom, bytes: &mut Vec<u8>) {
        let mut packing = Packing::new(room.size_bytes as usize);
        let values = self.table.records.find(keys, &mut packing);
        self.hold(room, values.last().and_then(Option::as_ref));
        let values = values.iter().map(|value| value.as_ref().map(found));
        ByteReply::Values(values.collect()).encode(bytes);
    }

    fn scan(&self, range: &ByteRange<'_>, room: ReplyRoom, bytes: &mut Vec<u8>) {
        let mut packing = Packing::new(room.size_bytes as usize);
        let scanned = self.table.records.scan(range, &mut packing);
        let value = |packed| {
            if range.of_keys {
                Found::whole(&[])
            } else {
                found(packed)
            }
        };
        if !range.of_keys {
            self.hold(room, scanned.records.last().map(|(_, value)| value));
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
        room: ReplyRoom,
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
            room_bytes: room.size_bytes as usize,
        })?;
        let mut packing = Packing::new(room.size_bytes as usize);
        let previous = previous.map(|value| {
            let here = packing.take(None, value.bytes().len());
            (value, here.expect("it is the first one"))
        });
        self.hold(room, previous.as_ref());
        let reply = ByteReply::Changed {
            is_done,
            was_present,
            previous: previous.as_ref().map(found),
        };
        reply.encode(bytes);
        Ok(())
    }

    fn read(&self, offset: u32, room: ReplyRoom, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let of = self.of(room.number);
        let Some(Transfer::Read(value)) = self.tables.transfers.find(of) else {
            return Err(Failure::Unsound);
        };
        let rest = value.bytes().get(offset as usize..);
        let rest = rest.filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(Failure::Unsound)?;
        // A part has a word before it, and takes whole words.
        let room_bytes = ((room.size_bytes as usize).saturating_sub(8) / 8 * 8).max(8);
        let part = &rest[..rest.len().min(room_bytes)];
        if part.len() == rest.len() {
            self.tables.transfers.take(of);
        }
        ByteReply::Part(part).encode(bytes);
        Ok(())
    }

    /// J8: keeps the last value of a reply, if not all of it is there.
    fn hold(&self, room: ReplyRoom, last: Option<&Packed>) {
        let is_cut = |(value, here): &&Packed| *here < value.bytes().len();
        if let Some((value, _)) = last.filter(is_cut) {
            let transfer = Transfer::Read(Arc::clone(value));
            // Where it is not kept, nobody is there to read on.
            let _ = self.tables.transfers.add(self.of(room.number), transfer);
        }
    }

    fn offer(&self, sent: Sent<'_>) -> Result<Offer, Failure> {
        match sent {
            Sent::Here(value) => Ok(Offer::new(value, self.table.records.room())),
            Sent::Staged(number) => self.tables.transfers.staged(self.of(number)),
        }
    }
}

fn found((value, here): &Packed) -> Found<'_> {
    Found {
        here: &value.bytes()[..*here],
        whole_size_bytes: value.bytes().len() as u32,
    }
}

#[cfg(test)]
mod tests;
