//! Operations on a table of byte strings as futures.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use farleaf_base::RemoteAddr;
use farleaf_fabric::OperationKind;
use farleaf_index::operation::HintCounters;
use farleaf_index::strings::ByteIndex;
use farleaf_index::strings::load::{ByteLoadJob, ByteLoadSummary, bulk_load};
use farleaf_index::strings::operation::{Change, Changed, Condition, check_record};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ByteTableState;
use super::listing::{not_listed, of_listing};
use crate::async_table::SlowPathFuture;
use crate::host::SessionHost;
use crate::options::TableInfo;
use crate::session::SessionCore;
use crate::{Error, PartCounts, Pool};

/// Pages that [`AsyncByteTable::multi_put`] writes concurrently.
const PAGES_AT_ONCE: usize = 16;

/// Result of an insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteInsertion {
    /// The key was absent and has the value now.
    Inserted,
    /// The key was present, with this value, which is unchanged.
    AlreadyPresent(Vec<u8>),
}

/// Result of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteSwap {
    /// The value was as expected and has been replaced.
    Swapped,
    /// The value was this one; nothing has changed.
    Differs(Option<Vec<u8>>),
}

/// Ordered map from byte strings to byte strings, whose operations are futures. Keys have 0 to
/// 4,096 bytes and sort as unsigned bytes; values have 0 to 64 MiB. On `mem` and `shm` a future is
/// ready at its first poll, unless it has to wait for another client's lock.
///
/// If the memory node stores the table ([`LayerKind::Rpc`](crate::LayerKind::Rpc)), an operation is
/// a call and waits for the node. Long values or replies take several calls
/// (`docs/explanation/calls.md`). A write whose future is dropped may still take effect, or not.
///
/// Dropping the future of a write before it is ready may leave a page locked. The session is then
/// closed to further operations, and others recover the page once the session is dropped. With
/// search layer `rf-tree` this applies to all operations, because they list the pages that they
/// find unlisted. Spawn writes on an executor rather than racing them against timeouts.
pub struct AsyncByteTable<H: SessionHost = Pool> {
    pub(super) session: Rc<SessionCore<H>>,
    pub(super) state: Rc<ByteTableState>,
}

impl<H: SessionHost> Clone for AsyncByteTable<H> {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.session), Rc::clone(&self.state))
    }
}

impl<H: SessionHost> fmt::Debug for AsyncByteTable<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncByteTable")
            .field("info", &self.state.info)
            .finish_non_exhaustive()
    }
}

impl<H: SessionHost> AsyncByteTable<H> {
    pub(super) fn new(session: Rc<SessionCore<H>>, state: Rc<ByteTableState>) -> Self {
        Self { session, state }
    }

    /// Returns the properties that are known without reading the table.
    pub fn info(&self) -> &TableInfo {
        &self.state.info
    }

    pub(super) fn index(&self) -> ByteIndex<'_, H::Endpoint> {
        ByteIndex::new(self.session.byte_access(&self.state), &self.state.index)
    }

    /// Returns the value of a key. Costs one round trip and reads one page if the hint is right and
    /// the value is in the page. A value outside costs another round trip, and one more for each
    /// 256,000 bytes.
    ///
    /// # Errors
    /// The key is too long, the table was dropped or is corrupted, or the fabric failed.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, |value| value.map(<[u8]>::to_vec)).await
    }

    /// Appends the value of a key to a buffer. Returns false, and appends nothing, if the key is
    /// absent. Copies the value once. Costs the same as [`get`](Self::get).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.get_with(key, |found| {
            value.extend_from_slice(found.unwrap_or_default());
            found.is_some()
        })
        .await
    }

    /// Calls a function with the value of a key, or `None`, and returns the function's result. A
    /// value in the page is not copied. Costs the same as [`get`](Self::get).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
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

    /// Returns the values of many keys, in the order of the keys. Costs one round trip per 256
    /// keys, and one more if some of their values are outside the pages.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
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

    /// Writes a key whether it is present or not, and returns whether it was present. Costs two
    /// round trips if the hint is right; large values take one more, and one for each 256,000
    /// bytes.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get); also if the value is too long, the pool is full, or
    /// the memory node that stores the table is full
    /// ([`ErrorKind::NodeFull`](crate::ErrorKind::NodeFull)): then nothing has changed.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let changed = self.modify(OperationKind::Put, key, Change::put(value));
        Ok(changed.await?.was_present)
    }

    /// Writes many keys, and returns how many of them were present. Not atomic: another session may
    /// see some of the records and not the others. If a key occurs twice, its last value stays.
    /// Costs the same as a [`put`](Self::put) for each record; 16 pages are written concurrently,
    /// and the records of one page one after the other.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put). If a key or a value is too long, nothing was
    /// written; else any of the records may have been written.
    pub async fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: &[(K, V)],
    ) -> Result<u64, Error> {
        for (key, value) in records {
            let checked = check_record(key.as_ref(), value.as_ref());
            checked.map_err(|error| Error::from(error).of_table(&self.state.info.name))?;
        }
        // Done even if there are no records, so that a broken session returns its error.
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
        // Running writes are awaited even if another one failed: dropping them would break the
        // session.
        while let Some(ended) = writing.next().await {
            written = written.and_then(|count| Ok(count + ended?));
            if written.is_ok() {
                writing.extend(waiting.next());
            }
        }
        written
    }

    /// Groups records by the page in which they are expected, or by key for tables without pages.
    /// Records of one key are adjacent and keep their order.
    fn by_place<K: AsRef<[u8]>, V>(&self, records: &[(K, V)]) -> Vec<Vec<usize>> {
        let keys = records.iter().map(|(key, _)| key.as_ref()).enumerate();
        if self.is_remote() {
            let mut by_key: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
            for (number, key) in keys {
                by_key.entry(key).or_default().push(number);
            }
            return by_key.into_values().collect();
        }
        // A key whose page is unknown forms its own group.
        let mut by_page: BTreeMap<(Option<RemoteAddr>, &[u8]), Vec<usize>> = BTreeMap::new();
        for (number, key) in keys {
            let page = self.index().expected_page(key);
            let of_page = (page, page.map_or(key, |_| b""));
            by_page.entry(of_page).or_default().push(number);
        }
        by_page.into_values().collect()
    }

    /// Writes a key like [`put`](Self::put), and returns the previous value. If that is outside the
    /// page, it costs one more round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put); also
    /// [`ErrorKind::PreviousLost`](crate::ErrorKind::PreviousLost) if the key was written but the
    /// rest of a long previous value could not be read from the memory node.
    pub async fn replace(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let change = Change::put(value).telling_previous();
        Ok(self.modify(OperationKind::Put, key, change).await?.previous)
    }

    /// Writes a key if it is absent. Costs the same as [`put`](Self::put).
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<ByteInsertion, Error> {
        let change = Change::put(value).when(Condition::IfAbsent);
        let change = change.telling_previous();
        let changed = self.modify(OperationKind::Insert, key, change).await?;
        Ok(match changed.previous {
            Some(value) => ByteInsertion::AlreadyPresent(value),
            None => ByteInsertion::Inserted,
        })
    }

    /// Writes a key if it is present, and returns whether it was. Costs the same as
    /// [`put`](Self::put).
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let change = Change::put(value).when(Condition::IfPresent);
        let changed = self.modify(OperationKind::Update, key, change).await?;
        Ok(changed.is_done)
    }

    /// Removes a key, and returns whether it was present. Costs two round trips if the hint is
    /// right.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let changed = self.modify(OperationKind::Delete, key, Change::delete());
        Ok(changed.await?.was_present)
    }

    /// Removes a key, and returns the value that it had.
    ///
    /// # Errors
    /// The same as those of [`replace`](Self::replace).
    pub async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let change = Change::delete().telling_previous();
        let changed = self.modify(OperationKind::Delete, key, change).await?;
        Ok(changed.previous)
    }

    /// Sets the value of a key to `new` (`None` removes the key) if it is `expected` (`None`: if
    /// the key is absent). Costs the same as [`put`](Self::put).
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
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

    /// Returns how often this session's hints were wrong since it opened the table.
    pub fn hint_counters(&self) -> HintCounters {
        self.state.index.hint_counters()
    }

    /// Returns the bytes that this session holds to find pages: models, residuals, tables and
    /// synonyms. Caches shared by the process's sessions count in full. Never more than the
    /// session's metadata budget, except for what unfinished operations hold.
    pub fn metadata_bytes(&self) -> u64 {
        self.state.index.metadata_bytes()
    }

    /// Returns how often this session has fetched and evicted parts of the table's metadata since
    /// it opened the table; `None` without a metadata budget.
    pub fn part_counts(&self) -> Option<PartCounts> {
        self.state.index.part_counts()
    }

    /// Returns the number of records at the last training, which ignores later inserts and deletes;
    /// 0 for a table that the memory node stores. Costs nothing; [`stats`](crate::ByteTable::stats)
    /// counts the records.
    pub fn len_estimate(&self) -> u64 {
        let (_, record_count, _, _) = self.state.index.training();
        record_count
    }

    /// Loads an empty table from a sequence that ascends by key, and trains its models. All records
    /// appear at once, or none. Calls `progress` from time to time with the number of records read.
    /// An empty sequence changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::ByteLoad`](crate::ErrorKind::ByteLoad): the sequence does not ascend, a key or
    /// a value is too long, or the table has or had records.
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) or
    /// [`ErrorKind::NodeFull`](crate::ErrorKind::NodeFull): the pool or the memory node is full. In
    /// these cases the table is unchanged.
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped): the table was dropped before or
    /// during the load, and the loaded records with it.
    pub async fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        if self.is_remote() {
            return self.load_remote(records.into_iter(), progress).await;
        }
        let (session, state) = (&self.session, &self.state);
        let guard = session.begin_bytes(state).await?;
        session.check_live_bytes(state).await?;
        session.chunk_owner_count.update(|count| count + 1);
        let plan = state.info.options.byte_load_plan(state.pages);
        let access = session.byte_access(state);
        let list = async |generation, pages| match &state.listing {
            None => Ok(()),
            Some(listing) => {
                let listing = Self::new(Rc::clone(session), Rc::clone(listing));
                let listed: SlowPathFuture<'_, ()> = Box::pin(listing.list_load(generation, pages));
                listed.await.map_err(not_listed)
            }
        };
        let job = ByteLoadJob {
            entry: &state.entry,
            plan,
            broken: &session.broken,
            block_store: state.index.block_store(),
        };
        let loaded = bulk_load(access, job, records.into_iter(), progress, list).await;
        if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
            session.mark_broken();
        } else {
            session.chunk_owner_count.update(|count| count - 1);
        }
        let loaded =
            loaded.map_err(|error| of_listing(error, &state.info.name).of_table(&state.info.name));
        // The loader knows of the new root and need not discover it through the retired first page.
        let refreshed = match loaded {
            Ok(_) => session.refresh_bytes(state).await,
            Err(_) => Ok(()),
        };
        drop(guard);
        refreshed?;
        let summary = loaded?;
        // Loads take long. If the table was dropped meanwhile, the records are in memory that no
        // client reads.
        session.check_live_bytes(state).await?;
        Ok(summary)
    }
}
