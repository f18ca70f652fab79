//! What sessions send and fetch in parts (J8, J10).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_index::rpc::Failure;
use farleaf_types::{OwnerWord, TableId};

use super::byte_records::{ByteRecords, Offer, StoredValue};
use super::room::{Room, Share};

/// What one session may have under way. It has no use for as many: what it has used least lately
/// was given up, by one that had lost the means to say so.
const COUNT_MAX: usize = 128;

/// Something that takes several requests. What takes long has a lock of its own.
#[derive(Clone, Debug)]
pub(super) enum Transfer {
    /// A value of which a reply did not hold everything.
    Read(Arc<StoredValue>),
    /// A value that comes in parts.
    Staged(Arc<Mutex<StagedValue>>),
    /// A load.
    Load(Arc<Mutex<StagedLoad>>),
}

/// As much of a value as has come.
#[derive(Debug)]
pub(super) struct StagedValue {
    bytes: Vec<u8>,
    whole_size_bytes: usize,
    share: Share,
}

/// As many records of a load as have come.
#[derive(Debug, Default)]
pub(super) struct StagedLoad {
    records: ByteRecords,
}

#[derive(Debug)]
struct Entry {
    table: TableId,
    used_at: u64,
    transfer: Transfer,
}

#[derive(Debug, Default)]
struct Entries {
    /// By session, and its number.
    of: BTreeMap<(u64, u64), Entry>,
    /// J10: the lowest number that a session has open, as far as it has told.
    lowest_open: BTreeMap<u64, u64>,
    /// Counts what is asked for.
    now: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Transfers(Mutex<Entries>);

/// Whose, of which table, and the session's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Of {
    pub(super) session: OwnerWord,
    pub(super) table: TableId,
    pub(super) number: u64,
}

impl Of {
    fn key(self) -> (u64, u64) {
        (self.session.word(), self.number)
    }
}

impl Transfers {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is under way under this number, if it is of this table.
    pub(super) fn find(&self, of: Of) -> Option<Transfer> {
        let mut entries = self.entries();
        entries.now += 1;
        let now = entries.now;
        let entry = entries.of.get_mut(&of.key());
        let entry = entry.filter(|entry| entry.table == of.table)?;
        entry.used_at = now;
        Some(entry.transfer.clone())
    }

    /// Something begins; what had the number goes, and what was given up, if there is too much.
    ///
    /// # Errors
    /// J10: its session has said that it does not ask for it any more.
    pub(super) fn add(&self, of: Of, transfer: Transfer) -> Result<(), Failure> {
        let mut entries = self.entries();
        let (session, number) = of.key();
        let lowest_open = entries.lowest_open.get(&session);
        if lowest_open.is_some_and(|lowest| number < *lowest) {
            return Err(Failure::Unsound);
        }
        entries.now += 1;
        let used_at = entries.now;
        let entry = Entry {
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
        // That takes its time.
        drop((before, given_up));
        Ok(())
    }

    /// It is over, if it is of this table.
    pub(super) fn take(&self, of: Of) -> Option<Transfer> {
        let mut entries = self.entries();
        let is_of_table = entries.of.get(&of.key())?.table == of.table;
        let entry = is_of_table.then(|| entries.of.remove(&of.key()));
        entry?.map(|entry| entry.transfer)
    }

    /// Nobody asks for it any more, of whatever table it is.
    pub(super) fn forget(&self, session: OwnerWord, number: u64) {
        let forgotten = self.entries().of.remove(&(session.word(), number));
        drop(forgotten);
    }

    /// J10: nobody asks for anything of the session that is below this number, and nobody will.
    pub(super) fn forget_below(&self, session: OwnerWord, number: u64) {
        let forgotten: Vec<Entry> = {
            let mut entries = self.entries();
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

    /// Frees all that is of a session, which makes no request any more.
    pub(super) fn forget_session(&self, session: OwnerWord) {
        let word = session.word();
        self.forget_all(|owner, _| owner == word);
        self.entries().lowest_open.remove(&word);
    }

    /// Frees all that is of a session, or of a table.
    pub(super) fn forget_all(&self, is_over: impl Fn(u64, TableId) -> bool) {
        let over: Vec<Entry> = {
            let mut entries = self.entries();
            let of = std::mem::take(&mut entries.of);
            let (over, left): (BTreeMap<_, _>, BTreeMap<_, _>) = of
                .into_iter()
                .partition(|((session, _), entry)| is_over(*session, entry.table));
            entries.of = left;
            over.into_values().collect()
        };
        drop(over);
    }

    /// J8: the next part of a value; how much of it there is then.
    pub(super) fn stage(
        &self,
        of: Of,
        (offset, whole_size_bytes): (u32, u32),
        part: &[u8],
        room: &Arc<Room>,
    ) -> Result<u64, Failure> {
        if offset == 0 {
            let mut share = Share::new(room);
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
        let mut staged = staged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_next = staged.bytes.len() == offset as usize
            && staged.whole_size_bytes == whole_size_bytes as usize;
        if !is_next {
            return Err(Failure::Unsound);
        }
        // The decoder has seen that it ends within the whole.
        staged.bytes.extend_from_slice(part);
        Ok(staged.bytes.len() as u64)
    }

    /// A value that was staged, if it is whole. It is staged no longer.
    pub(super) fn staged(&self, of: Of) -> Result<Offer, Failure> {
        let Some(Transfer::Staged(staged)) = self.take(of) else {
            return Err(Failure::Unsound);
        };
        // Nobody else brings parts of it now.
        let staged = Arc::into_inner(staged).ok_or(Failure::Unsound)?;
        let staged = staged.into_inner().unwrap_or_else(PoisonError::into_inner);
        if staged.bytes.len() != staged.whole_size_bytes {
            return Err(Failure::Unsound);
        }
        Ok(Offer {
            bytes: staged.bytes.into_boxed_slice(),
            share: staged.share,
        })
    }

    /// J8: records of a load, behind those before; how many there are then.
    pub(super) fn load(&self, of: Of, records: Vec<(&[u8], Offer)>) -> Result<u64, Failure> {
        let load = match self.find(of) {
            Some(Transfer::Load(load)) => load,
            Some(_) => return Err(Failure::Unsound),
            None => {
                let load = Arc::<Mutex<StagedLoad>>::default();
                self.add(of, Transfer::Load(Arc::clone(&load)))?;
                load
            }
        };
        let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// What a load has brought, if that is all of it. It is under way no longer.
    pub(super) fn loaded(&self, of: Of, record_count: u64) -> Result<ByteRecords, Failure> {
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

    /// How many are under way.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.entries().of.len()
    }
}

#[cfg(test)]
mod tests;
