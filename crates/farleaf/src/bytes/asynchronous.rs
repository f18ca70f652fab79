//! Operations on a table of byte strings as futures.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use farleaf_byte_index::ByteIndex;
use farleaf_byte_index::load::{ByteLoadSummary, bulk_load};
use farleaf_byte_index::operation::{Change, Changed, Condition, check_record};
use farleaf_fabric::OperationKind;
use farleaf_index::operation::HintCounters;
use farleaf_types::RemoteAddr;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ByteTableState;
use super::listing::{not_listed, of_listing};
use crate::async_table::Rare;
use crate::host::Host;
use crate::options::TableInfo;
use crate::session::SessionCore;
use crate::{Error, PartCounts, Pool};

/// Pages that [`AsyncByteTable::multi_put`] works on at once.
const PAGES_AT_ONCE: usize = 16;

/// What an insert found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteInsertion {
    /// The key was absent and has the value now.
    Inserted,
    /// The key was present, with this value, which it still has.
    AlreadyPresent(Vec<u8>),
}

/// What a compare-and-swap found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteSwap {
    /// What was expected; it has been replaced.
    Swapped,
    /// This; nothing has changed.
    Differs(Option<Vec<u8>>),
}

/// An ordered map from byte strings to byte strings, whose operations are futures: keys of 0 to
/// 4,096 bytes, in the order of unsigned bytes, and values of 0 to 64 MiB. On `mem` and `shm` a
/// future is ready at its first poll, unless it has to wait for another client's lock.
///
/// Of a table that the memory node holds ([`LayerKind::Rpc`](crate::LayerKind::Rpc)) an operation
/// is a call, or several where a value or an answer is long (`docs/calls.md`), and waits for the
/// node. A write whose future is dropped may happen or not, and later.
///
/// Dropping the future of a write before it is done (of any operation, where the search layer is
/// `rf-tree`: it lists what it has met) may leave a page locked: the session is then closed to
/// further operations, and others recover the page when it has been dropped. Spawn writes on an
/// executor rather than racing them against time-outs.
pub struct AsyncByteTable<H: Host = Pool> {
    pub(super) session: Rc<SessionCore<H>>,
    pub(super) state: Rc<ByteTableState>,
}

impl<H: Host> Clone for AsyncByteTable<H> {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.session), Rc::clone(&self.state))
    }
}

impl<H: Host> fmt::Debug for AsyncByteTable<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncByteTable")
            .field("info", &self.state.info)
            .finish_non_exhaustive()
    }
}

impl<H: Host> AsyncByteTable<H> {
    pub(super) fn new(session: Rc<SessionCore<H>>, state: Rc<ByteTableState>) -> Self {
        Self { session, state }
    }

    /// What there is to know of the table without looking into it.
    pub fn info(&self) -> &TableInfo {
        &self.state.info
    }

    pub(super) fn index(&self) -> ByteIndex<'_, H::Endpoint> {
        ByteIndex::new(self.session.byte_access(&self.state), &self.state.index)
    }

    /// The value of a key. One round trip, one page, when the hint is right and the value lies in
    /// the page; two if it is outside, and one more for each 256,000 bytes.
    ///
    /// # Errors
    /// The key is too long, the table was dropped or is damaged, or the fabric failed.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, |value| value.map(<[u8]>::to_vec)).await
    }

    /// Appends the value of a key to a buffer; false, and nothing appended, if it is absent. The
    /// value is copied once. Costs as [`get`](Self::get).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.get_with(key, |found| {
            value.extend_from_slice(found.unwrap_or_default());
            found.is_some()
        })
        .await
    }

    /// Hands the value of a key, or `None`, to a function, and returns what that returns: where the
    /// value lies in the page, it is not copied. Costs as [`get`](Self::get).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_with<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        if self.is_remote() {
            return Ok(read(self.get_remote(key).await?.as_deref()));
        }
        let mut read = Some(read);
        self.operate(OperationKind::Get, async |index, batch| {
            let read = |value: Option<&[u8]>| read.take().map(|read| read(value));
            index.get(batch, key, read).await
        })
        .await
        .map(|read| read.expect("an operation that has to be done again has not read"))
    }

    /// The values of many keys, in their order: one round trip per 256 keys, and one more for
    /// those of them whose values are outside.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if self.is_remote() {
            return self.multi_get_remote(keys).await;
        }
        self.operate(OperationKind::MultiGet, async |index, batch| {
            let mut values = vec![None; keys.len()];
            let read = |key: usize, value: Option<&[u8]>| {
                values[key] = value.map(<[u8]>::to_vec);
            };
            index.multi_get(batch, keys, read).await?;
            Ok(values)
        })
        .await
    }

    /// Writes a key whether it is present or not; whether it was. Two round trips when the hint is
    /// right; large values take one more, and one for each 256,000 bytes.
    ///
    /// # Errors
    /// As for [`get`](Self::get); or the value is too long, or the pool is full, or the memory node
    /// where it holds the table ([`ErrorKind::NodeFull`](crate::ErrorKind::NodeFull)): then nothing
    /// has changed.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let changed = self.modify(OperationKind::Put, key, Change::put(value));
        Ok(changed.await?.was_present)
    }

    /// Writes many keys; how many of them were present. Each by itself: another session may see
    /// some of them and not the others; of a key that is there twice the last value stays. Costs as
    /// [`put`](Self::put), for each, with 16 pages at a time, those of one page one after the
    /// other.
    ///
    /// # Errors
    /// As for [`put`](Self::put); where a key or a value is too long nothing was written, else any
    /// of the records may be.
    pub async fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: &[(K, V)],
    ) -> Result<u64, Error> {
        for (key, value) in records {
            let checked = check_record(key.as_ref(), value.as_ref());
            checked.map_err(|error| Error::from(error).of_table(&self.state.info.name))?;
        }
        // Also for no records: a session that is broken says so.
        drop(self.session.begin_bytes(&self.state).await?);
        let mut waiting = self.by_place(records).into_iter().map(async |numbers| {
            let mut present_count = 0;
            for number in numbers {
                let (key, value) = &records[number];
                present_count += u64::from(self.put(key.as_ref(), value.as_ref()).await?);
            }
            Ok::<u64, Error>(present_count)
        });
        let mut writing: FuturesUnordered<_> = waiting.by_ref().take(PAGES_AT_ONCE).collect();
        let mut written = Ok(0);
        // Those under way are seen to their end, whatever became of others: dropped in the middle
        // they would break the session.
        while let Some(ended) = writing.next().await {
            written = written.and_then(|count| Ok(count + ended?));
            if written.is_ok() {
                writing.extend(waiting.next());
            }
        }
        written
    }

    /// Records by the page that they are probably in, or by key where there are no pages: those of
    /// one key are side by side, in their order.
    fn by_place<K: AsRef<[u8]>, V>(&self, records: &[(K, V)]) -> Vec<Vec<usize>> {
        let keys = records.iter().map(|(key, _)| key.as_ref()).enumerate();
        if self.is_remote() {
            let mut by_key: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
            for (number, key) in keys {
                by_key.entry(key).or_default().push(number);
            }
            return by_key.into_values().collect();
        }
        // Of a key whose page is not known the key stands for it.
        let mut by_page: BTreeMap<(Option<RemoteAddr>, &[u8]), Vec<usize>> = BTreeMap::new();
        for (number, key) in keys {
            let page = self.index().expected_page(key);
            let of_page = (page, page.map_or(key, |_| b""));
            by_page.entry(of_page).or_default().push(number);
        }
        by_page.into_values().collect()
    }

    /// [`put`](Self::put), and the value that was there before. One that is outside costs a round
    /// trip more.
    ///
    /// # Errors
    /// As for [`put`](Self::put); or it is written, and the memory node cannot be asked for the
    /// rest of a long value ([`ErrorKind::PreviousLost`](crate::ErrorKind::PreviousLost)).
    pub async fn replace(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let change = Change::put(value).telling_previous();
        Ok(self.modify(OperationKind::Put, key, change).await?.previous)
    }

    /// Writes a key if it is absent. Costs as [`put`](Self::put).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<ByteInsertion, Error> {
        let change = Change::put(value).when(Condition::IfAbsent);
        let change = change.telling_previous();
        let changed = self.modify(OperationKind::Insert, key, change).await?;
        Ok(match changed.previous {
            Some(value) => ByteInsertion::AlreadyPresent(value),
            None => ByteInsertion::Inserted,
        })
    }

    /// Writes a key if it is present; whether it was. Costs as [`put`](Self::put).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let change = Change::put(value).when(Condition::IfPresent);
        let changed = self.modify(OperationKind::Update, key, change).await?;
        Ok(changed.is_done)
    }

    /// Removes a key; whether it was present. Two round trips when the hint is right.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let changed = self.modify(OperationKind::Delete, key, Change::delete());
        Ok(changed.await?.was_present)
    }

    /// Removes a key; the value that it had.
    ///
    /// # Errors
    /// As for [`replace`](Self::replace).
    pub async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let change = Change::delete().telling_previous();
        let changed = self.modify(OperationKind::Delete, key, change).await?;
        Ok(changed.previous)
    }

    /// Gives a key the value `new` (`None` removes it) if its value is `expected` (`None`: if it is
    /// absent). Costs as [`put`](Self::put).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<ByteSwap, Error> {
        let change = Change {
            condition: Condition::IfEqual(expected),
            value: new,
            wants_previous: true,
        };
        let changed = self.modify(OperationKind::CompareSwap, key, change).await?;
        Ok(if changed.is_done {
            ByteSwap::Swapped
        } else {
            ByteSwap::Differs(changed.previous)
        })
    }

    pub(super) async fn modify(
        &self,
        kind: OperationKind,
        key: &[u8],
        change: Change<'_>,
    ) -> Result<Changed, Error> {
        if self.is_remote() {
            return self.modify_remote(kind, key, &change).await;
        }
        self.operate(kind, async |index, batch| {
            index.modify(batch, key, &change).await
        })
        .await
    }

    /// How often this session's hints were not right since it opened the table.
    pub fn hint_counters(&self) -> HintCounters {
        self.state.index.hint_counters()
    }

    /// Bytes that this session holds to find pages: models, residuals, tables and synonyms; what
    /// sessions of a process share is counted whole. Under a metadata budget not more than that,
    /// but for what operations under way have in hand.
    pub fn metadata_bytes(&self) -> u64 {
        self.state.index.metadata_bytes()
    }

    /// How often this session read and forgot parts of what leads to pages since it opened the
    /// table; `None` without a metadata budget.
    pub fn part_counts(&self) -> Option<PartCounts> {
        self.state.index.part_counts()
    }

    /// How many records the last training saw: what the table had then, without what was written
    /// and removed since; of a table that the memory node holds, 0. Costs nothing;
    /// [`stats`](crate::ByteTable::stats) counts.
    pub fn len_estimate(&self) -> u64 {
        let (_, record_count, _, _) = self.state.index.training();
        record_count
    }

    /// Fills an empty table from a sequence that ascends by key, and trains its models. All of it
    /// appears at once, or nothing. `progress` is told now and then how many records have been
    /// taken. An empty sequence changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::ByteLoad`](crate::ErrorKind::ByteLoad): the sequence does not ascend, a key or
    /// a value is too long, or the table has records or had some.
    /// [`ErrorKind::Full`](crate::ErrorKind::Full), or
    /// [`ErrorKind::NodeFull`](crate::ErrorKind::NodeFull). The table is then as it was.
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped): before the load or while it was
    /// under way. What was loaded is gone with the table.
    pub async fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        if self.is_remote() {
            return self.load_remote(records.into_iter(), progress).await;
        }
        let (session, state) = (&self.session, &self.state);
        let begun = session.begin_bytes(state).await?;
        session.check_live_bytes(state).await?;
        session.chunk_owner_count.update(|count| count + 1);
        let plan = state.info.options.byte_load_plan(state.pages);
        let access = session.byte_access(state);
        let (records, kept) = (records.into_iter(), state.index.block_store());
        let list = async |generation, pages| match &state.listing {
            None => Ok(()),
            Some(listing) => {
                let listing = Self::new(Rc::clone(session), Rc::clone(listing));
                let listed: Rare<'_, ()> = Box::pin(listing.list_load(generation, pages));
                listed.await.map_err(not_listed)
            }
        };
        let of = (&state.entry, plan);
        let session_keeps = (&*session.broken, kept);
        let loaded = bulk_load(access, of, session_keeps, records, progress, list).await;
        if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
            session.mark_broken();
        } else {
            session.chunk_owner_count.update(|count| count - 1);
        }
        let loaded =
            loaded.map_err(|error| of_listing(error, &state.info.name).of_table(&state.info.name));
        // Whoever loads knows that there is a new root without meeting the retired first page.
        let refreshed = match loaded {
            Ok(_) => session.refresh_bytes(state).await,
            Err(_) => Ok(()),
        };
        drop(begun);
        refreshed?;
        let summary = loaded?;
        // A load takes long; were it dropped meanwhile, everything went where nobody looks.
        session.check_live_bytes(state).await?;
        Ok(summary)
    }
}
