//! Values and loads that sessions send or fetch in several parts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_base::locks::lock;
use farleaf_base::{OwnerWord, TableId};
use farleaf_index::rpc::Failure;

use super::byte_records::{ByteRecords, OfferedValue, StoredValue};
use super::memory_limit::{MemoryLimit, MemoryShare};

/// Maximum number of transfers of one session. No session needs so many: the least recently used
/// ones were abandoned without a message.
const COUNT_MAX: usize = 128;

/// Data that takes several requests. Data whose handling takes long has its own lock.
#[derive(Clone, Debug)]
pub(super) enum Transfer {
    /// Value that did not fit completely into a reply.
    Read(Arc<StoredValue>),
    /// Value that the session sends in parts.
    Staged(Arc<Mutex<StagedValue>>),
    /// Load that the session sends in parts.
    Load(Arc<Mutex<StagedLoad>>),
}

/// Part of a value that has arrived.
#[derive(Debug)]
pub(super) struct StagedValue {
    bytes: Vec<u8>,
    whole_size_bytes: usize,
    share: MemoryShare,
}

/// Records of a load that have arrived.
#[derive(Debug, Default)]
pub(super) struct StagedLoad {
    records: ByteRecords,
}

#[derive(Debug)]
struct TransferEntry {
    table: TableId,
    used_at: u64,
    transfer: Transfer,
}

#[derive(Debug, Default)]
struct TransferEntries {
    /// Transfers, by session and number.
    of: BTreeMap<(u64, u64), TransferEntry>,
    /// Lowest number that each session still uses, as far as it has stated.
    lowest_open: BTreeMap<u64, u64>,
    /// Counter of accesses, for finding the least recently used transfer.
    now: u64,
}

/// All transfers.
#[derive(Debug, Default)]
pub(super) struct Transfers(Mutex<TransferEntries>);

/// Identity of a transfer: session, table, and the session's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferId {
    pub(super) session: OwnerWord,
    pub(super) table: TableId,
    pub(super) number: u64,
}

impl TransferId {
    fn key(self) -> (u64, u64) {
        (self.session.word(), self.number)
    }
}

impl Transfers {
    /// Returns the transfer with this number, if it belongs to this table.
    pub(super) fn find(&self, of: TransferId) -> Option<Transfer> {
        let mut entries = lock(&self.0);
        entries.now += 1;
        let now = entries.now;
        let entry = entries.of.get_mut(&of.key());
        let entry = entry.filter(|entry| entry.table == of.table)?;
        entry.used_at = now;
        Some(entry.transfer.clone())
    }

    /// Adds a transfer; drops an older one with the same number, and abandoned ones if there are
    /// too many.
    ///
    /// # Errors
    /// The session has stated that it does not use the number any more.
    pub(super) fn add(&self, of: TransferId, transfer: Transfer) -> Result<(), Failure> {
        let mut entries = lock(&self.0);
        let (session, number) = of.key();
        let lowest_open = entries.lowest_open.get(&session);
        if lowest_open.is_some_and(|lowest| number < *lowest) {
            return Err(Failure::Unsound);
        }
        entries.now += 1;
        let used_at = entries.now;
        let entry = TransferEntry {
            table: of.table,
            used_at,
            transfer,
        };
        let before = entries.of.insert(of.key(), entry);
        let own = entries.of.range((of.key().0, 0)..=(of.key().0, u64::MAX));
        let is_crowded = own.clone().count() > COUNT_MAX;
        let oldest = own.min_by_key(|(_, entry)| entry.used_at);
        let given_up = oldest.map(|(key, _)| *key).filter(|_| is_crowded);
        let given_up = given_up.and_then(|key| entries.of.remove(&key));
        drop(entries);
        // Freeing takes long, so it happens after the lock is released.
        drop((before, given_up));
        Ok(())
    }

    /// Removes and returns the transfer, if it belongs to this table.
    pub(super) fn take(&self, of: TransferId) -> Option<Transfer> {
        let mut entries = lock(&self.0);
        let is_of_table = entries.of.get(&of.key())?.table == of.table;
        let entry = is_of_table.then(|| entries.of.remove(&of.key()));
        entry?.map(|entry| entry.transfer)
    }

    /// Drops a transfer that its session has released, whatever its table.
    pub(super) fn forget(&self, session: OwnerWord, number: u64) {
        let forgotten = lock(&self.0).of.remove(&(session.word(), number));
        drop(forgotten);
    }

    /// Drops a session's transfers below a number, which the session does not use any more, now or
    /// later.
    pub(super) fn forget_below(&self, session: OwnerWord, number: u64) {
        let forgotten: Vec<TransferEntry> = {
            let mut entries = lock(&self.0);
            let session = session.word();
            let known = entries.lowest_open.entry(session).or_default();
            if *known >= number {
                return;
            }
            *known = number;
            let below = (session, 0)..(session, number);
            let below = entries.of.extract_if(below, |_, _| true);
            below.map(|(_, entry)| entry).collect()
        };
        drop(forgotten);
    }

    /// Drops all transfers of a session that makes no more requests.
    pub(super) fn drop_session(&self, session: OwnerWord) {
        let word = session.word();
        self.forget_all(|owner, _| owner == word);
        lock(&self.0).lowest_open.remove(&word);
    }

    /// Drops the transfers of a session or of a table.
    pub(super) fn forget_all(&self, is_over: impl Fn(u64, TableId) -> bool) {
        let over: Vec<TransferEntry> = {
            let mut entries = lock(&self.0);
            let of = std::mem::take(&mut entries.of);
            let (over, left): (BTreeMap<_, _>, BTreeMap<_, _>) = of
                .into_iter()
                .partition(|((session, _), entry)| is_over(*session, entry.table));
            entries.of = left;
            over.into_values().collect()
        };
        drop(over);
    }

    /// Adds the next part of a value; returns how many bytes have arrived.
    pub(super) fn stage(
        &self,
        of: TransferId,
        offset: u32,
        whole_size_bytes: u32,
        part: &[u8],
        limit: &Arc<MemoryLimit>,
    ) -> Result<u64, Failure> {
        if offset == 0 {
            let mut share = MemoryShare::new(limit);
            if !share.resize(whole_size_bytes.into()) {
                return Err(Failure::Full);
            }
            let staged = StagedValue {
                bytes: Vec::with_capacity(whole_size_bytes as usize),
                whole_size_bytes: whole_size_bytes as usize,
                share,
            };
            self.add(of, Transfer::Staged(Arc::new(Mutex::new(staged))))?;
        }
        let Some(Transfer::Staged(staged)) = self.find(of) else {
            return Err(Failure::Unsound);
        };
        let mut staged = lock(&staged);
        let is_next = staged.bytes.len() == offset as usize
            && staged.whole_size_bytes == whole_size_bytes as usize;
        if !is_next {
            return Err(Failure::Unsound);
        }
        // The decoder has checked that the part ends within the whole value.
        staged.bytes.extend_from_slice(part);
        Ok(staged.bytes.len() as u64)
    }

    /// Removes and returns a staged value, if it is complete.
    pub(super) fn staged(&self, of: TransferId) -> Result<OfferedValue, Failure> {
        let Some(Transfer::Staged(staged)) = self.take(of) else {
            return Err(Failure::Unsound);
        };
        // No other thread adds parts to it now.
        let staged = Arc::into_inner(staged).ok_or(Failure::Unsound)?;
        let staged = staged.into_inner().unwrap_or_else(PoisonError::into_inner);
        if staged.bytes.len() != staged.whole_size_bytes {
            return Err(Failure::Unsound);
        }
        Ok(OfferedValue {
            bytes: staged.bytes.into_boxed_slice(),
            share: staged.share,
        })
    }

    /// Adds records to a load; returns how many have arrived.
    pub(super) fn load(
        &self,
        of: TransferId,
        records: Vec<(&[u8], OfferedValue)>,
    ) -> Result<u64, Failure> {
        let load = match self.find(of) {
            Some(Transfer::Load(load)) => load,
            Some(_) => return Err(Failure::Unsound),
            None => {
                let load = Arc::<Mutex<StagedLoad>>::default();
                self.add(of, Transfer::Load(Arc::clone(&load)))?;
                load
            }
        };
        let mut load = lock(&load);
        for (key, value) in records {
            let last = load.records.last_key_value();
            if last.is_some_and(|(last, _)| **last >= *key) {
                return Err(Failure::Unsound);
            }
            let value = value.stored(key.len()).ok_or(Failure::Full)?;
            load.records.insert(key.into(), value);
        }
        Ok(load.records.len() as u64)
    }

    /// Removes and returns the records of a load, if it is complete.
    pub(super) fn loaded(&self, of: TransferId, record_count: u64) -> Result<ByteRecords, Failure> {
        let Some(Transfer::Load(load)) = self.take(of) else {
            return Err(Failure::Unsound);
        };
        let load = Arc::into_inner(load).ok_or(Failure::Unsound)?;
        let load = load.into_inner().unwrap_or_else(PoisonError::into_inner);
        if load.records.len() as u64 != record_count {
            return Err(Failure::Unsound);
        }
        Ok(load.records)
    }

    /// Returns the number of transfers.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.0).of.len()
    }
}

#[cfg(test)]
mod tests;
