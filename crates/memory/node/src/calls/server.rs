//! Tables in the node's own memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use farleaf_base::locks::{lock, read, write};
use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_index::rpc::bytes::{ByteReply, ByteRequest};
use farleaf_index::rpc::{BadWords, Failure, LookUpReply, ModelNews, WordReply, WordRequest};
use farleaf_pool::PoolError;
use farleaf_pool::PoolLayout;
use farleaf_pool::catalog::{EntryState, TableKind, live_word};

use super::byte_server::{ByteTables, ServedByteTable};
use super::memory_limit::MemoryLimit;
use super::records::{RECORD_SIZE_BYTES, Records, TableRecords};
use crate::catalog::read_catalog;
use crate::sweep::MemoryMaintainer;
use crate::xstore::{LeafTable, LeafTables, SessionFactory, Worker};

/// Maximum number of unfinished loads of a session.
const LOAD_COUNT_MAX: usize = 4;

/// Table that has been looked up.
enum FoundTable {
    /// Table of words in the node's own memory.
    Own(Arc<ServedTable>),
    /// Table of byte strings in the node's own memory.
    OwnBytes(Arc<ServedByteTable>),
    /// Table whose records are in leaves.
    Leaves(Arc<LeafTable>),
}

/// Table, and its entry in the catalog.
#[derive(Debug)]
struct ServedTable {
    entry: u64,
    records: TableRecords,
}

/// All tables that the node serves.
#[derive(Debug)]
pub struct TableServer {
    tables: RwLock<BTreeMap<TableId, Arc<ServedTable>>>,
    /// Tables in leaves that only the node changes.
    leaves: Arc<LeafTables>,
    bytes: ByteTables,
    loads: Mutex<UnfinishedLoads>,
    memory_limit: Arc<MemoryLimit>,
}

/// Unfinished loads. Each has its own lock, because filling or freeing it may take long.
type UnfinishedLoads = HashMap<LoadId, Arc<Mutex<UnfinishedLoad>>>;

/// Identifies an unfinished load by its session and the number that the session gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LoadId {
    session: OwnerWord,
    load: u64,
}

/// Records that a load has sent so far.
#[derive(Debug)]
struct UnfinishedLoad {
    table: TableId,
    records: Records,
    last: Option<u64>,
    memory_limit: Arc<MemoryLimit>,
}

impl TableServer {
    /// Creates a server without tables. Records may take about `size_bytes_max` bytes of memory in
    /// all.
    pub fn new(size_bytes_max: u64) -> Self {
        let memory_limit = Arc::new(MemoryLimit::new(size_bytes_max));
        Self {
            tables: RwLock::default(),
            leaves: Arc::default(),
            bytes: ByteTables::new(Arc::clone(&memory_limit)),
            loads: Mutex::default(),
            memory_limit,
        }
    }

    /// Returns the tables in leaves that only the node changes.
    pub fn leaves(&self) -> &Arc<LeafTables> {
        &self.leaves
    }

    /// Executes a request; one about leaves is executed by a worker.
    ///
    /// # Errors
    /// The request is invalid, the catalog cannot be read, or the worker fails. The message is for
    /// the client.
    pub async fn serve<E: Endpoint, B: SessionFactory>(
        &self,
        endpoint: &E,
        layout: &PoolLayout,
        worker: &Worker<B>,
        session: OwnerWord,
        request: &[u8],
    ) -> Result<Vec<u8>, String> {
        if ByteRequest::is_one(request) {
            return self.serve_bytes(endpoint, layout, session, request).await;
        }
        let decoded = WordRequest::decode(request);
        let (id, request) = decoded.map_err(invalid_request)?;
        if let WordRequest::LoadDrop { load } = request {
            // Whether the table exists or not.
            self.drop_load(LoadId { session, load });
        }
        let reply = match self.table(endpoint, layout, id).await {
            Ok(Ok(FoundTable::Own(table))) => self.execute(&table.records, session, id, request),
            Ok(Ok(FoundTable::Leaves(table))) => worker.execute(&table, request).await?,
            Ok(Ok(FoundTable::OwnBytes(_))) => WordReply::Failed(Failure::OfOtherKind),
            Ok(Err(failure)) => WordReply::Failed(failure),
            Err(error) => return Err(no_catalog(&error)),
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        Ok(bytes)
    }

    async fn serve_bytes<E: Endpoint>(
        &self,
        endpoint: &E,
        layout: &PoolLayout,
        session: OwnerWord,
        request: &[u8],
    ) -> Result<Vec<u8>, String> {
        let decoded = ByteRequest::decode(request);
        let (head, request) = decoded.map_err(invalid_request)?;
        // Whether the table exists or not.
        self.bytes.forget_below(session, head.lowest_open);
        if let ByteRequest::Forget { number } = request {
            self.bytes.forget_transfer(session, number);
        }
        let mut bytes = Vec::new();
        match self.table(endpoint, layout, head.table).await {
            Ok(Ok(FoundTable::OwnBytes(table))) => {
                self.bytes.execute(&table, session, request, &mut bytes);
            }
            Ok(Ok(FoundTable::Own(_) | FoundTable::Leaves(_))) => {
                ByteReply::Failed(Failure::OfOtherKind).encode(&mut bytes);
            }
            Ok(Err(failure)) => ByteReply::Failed(failure).encode(&mut bytes),
            Err(error) => return Err(no_catalog(&error)),
        }
        Ok(bytes)
    }

    /// Looks up a table, in the catalog if it is new.
    async fn table<E: Endpoint>(
        &self,
        endpoint: &E,
        layout: &PoolLayout,
        id: TableId,
    ) -> Result<Result<FoundTable, Failure>, PoolError> {
        if let Some(table) = read(&self.tables).get(&id) {
            return Ok(Ok(FoundTable::Own(Arc::clone(table))));
        }
        if let Some(table) = self.bytes.get(id) {
            return Ok(Ok(FoundTable::OwnBytes(table)));
        }
        if let Some(table) = self.leaves.get(id) {
            return Ok(Ok(FoundTable::Leaves(table)));
        }
        let entries = read_catalog(endpoint, layout).await?.into_iter();
        let mut entries = entries.filter_map(|entry| entry.ok()?);
        let entry = entries.find(|entry| entry.record.id == id);
        let Some(entry) = entry.filter(|entry| entry.state == EntryState::Live) else {
            return Ok(Err(Failure::Dropped));
        };
        let kind = LayerKind::from_number(entry.record.search_layer);
        let has_bytes = matches!(entry.record.kind, TableKind::Bytes { .. });
        match kind {
            Some(LayerKind::Rpc) if has_bytes => {
                let table = self.bytes.add(id, entry.index);
                return Ok(Ok(FoundTable::OwnBytes(table)));
            }
            Some(LayerKind::Rpc) => {}
            Some(kind) if kind.has_node_writes() => {
                let added = self.leaves.add(entry);
                return Ok(added.map(FoundTable::Leaves));
            }
            _ => return Ok(Err(Failure::OfLeaves)),
        }
        let mut tables = write(&self.tables);
        let table = tables.entry(id).or_insert_with(|| {
            Arc::new(ServedTable {
                entry: entry.index,
                records: TableRecords::new(Arc::clone(&self.memory_limit)),
            })
        });
        Ok(Ok(FoundTable::Own(Arc::clone(table))))
    }

    fn execute(
        &self,
        records: &TableRecords,
        session: OwnerWord,
        id: TableId,
        request: WordRequest,
    ) -> WordReply {
        match request {
            WordRequest::Get(key) => WordReply::Found(records.find(key)),
            WordRequest::MultiGet(keys) => WordReply::Several(records.find_several(&keys)),
            WordRequest::Change(key, change) | WordRequest::ChangeAt(key, change, _) => {
                records.change(key, change)
            }
            WordRequest::LookUp(key, _) => WordReply::LookUpReply(Box::new(LookUpReply {
                found: records.find(key),
                leaf: RemoteAddr::NULL,
                news: ModelNews::None,
            })),
            WordRequest::Scan { from, limit } => {
                WordReply::Records(records.scan(from, limit as usize))
            }
            WordRequest::ScanReverse { from, limit } => {
                WordReply::Records(records.scan_reverse(from, limit as usize))
            }
            WordRequest::Count => WordReply::Count(records.count()),
            WordRequest::LoadPart { load, records } => {
                self.take_part(LoadId { session, load }, id, &records)
            }
            WordRequest::LoadCommit { load, record_count } => {
                let load = lock(&self.loads).remove(&LoadId { session, load });
                // No other thread adds parts to it now.
                let load = load.and_then(Arc::into_inner).map(Mutex::into_inner);
                let load = load.map(|load| load.unwrap_or_else(PoisonError::into_inner));
                let is_whole = |load: &UnfinishedLoad| {
                    load.table == id && load.records.len() as u64 == record_count
                };
                match load.filter(is_whole) {
                    Some(mut load) => records.take_over(&mut load.records),
                    None => WordReply::Failed(Failure::Unsound),
                }
            }
            WordRequest::LoadDrop { .. } => WordReply::Count(0),
        }
    }

    fn take_part(&self, id: LoadId, table: TableId, records: &[(u64, u64)]) -> WordReply {
        let load = self.load(id, table);
        let mut load = lock(&load);
        let mut last = load.last;
        let ascends = records.iter().all(|(key, _)| {
            let is_next = last.is_none_or(|last| *key > last);
            last = Some(*key);
            is_next
        });
        if !ascends || load.table != table {
            return WordReply::Failed(Failure::Unsound);
        }
        if !self
            .memory_limit
            .take(records.len() as u64 * RECORD_SIZE_BYTES)
        {
            return WordReply::Failed(Failure::Full);
        }
        for (key, value) in records {
            load.records.insert(*key, AtomicU64::new(*value));
        }
        load.last = last;
        WordReply::Count(load.records.len() as u64)
    }

    /// Returns a load that has begun or begins now. If a session has too many, it has abandoned
    /// some without a message: the oldest one is dropped.
    fn load(&self, id: LoadId, table: TableId) -> Arc<Mutex<UnfinishedLoad>> {
        let mut loads = lock(&self.loads);
        if let Some(load) = loads.get(&id) {
            return Arc::clone(load);
        }
        let of_session = loads.keys().filter(|other| other.session == id.session);
        let oldest = of_session.clone().copied().min_by_key(|other| other.load);
        let is_crowded = of_session.count() >= LOAD_COUNT_MAX;
        let given_up = oldest.filter(|_| is_crowded);
        let given_up = given_up.and_then(|oldest| loads.remove(&oldest));
        let load = Arc::new(Mutex::new(UnfinishedLoad {
            table,
            records: Records::new(),
            last: None,
            memory_limit: Arc::clone(&self.memory_limit),
        }));
        loads.insert(id, Arc::clone(&load));
        drop(loads);
        // Freeing takes long, so it happens after the lock is released.
        drop(given_up);
        load
    }

    fn drop_load(&self, id: LoadId) {
        let load = lock(&self.loads).remove(&id);
        drop(load);
    }

    /// Drops the loads of a fenced session.
    pub(super) fn drop_session(&self, session: OwnerWord) {
        self.forget_loads(|id, _| id.session == session);
        self.bytes.drop_session(session);
    }

    /// Drops loads; frees their memory after the lock is released.
    fn forget_loads(&self, is_over: impl Fn(LoadId, TableId) -> bool) {
        let mut over = Vec::new();
        lock(&self.loads).retain(|id, load| {
            let table = lock(load).table;
            let is_over = is_over(*id, table);
            if is_over {
                over.push(Arc::clone(load));
            }
            !is_over
        });
    }

    /// Removes tables that the catalog does not contain any more.
    pub(super) async fn remove_dropped<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        let known: Vec<(TableId, u64)> = {
            let tables = read(&self.tables);
            let own = tables.iter().map(|(id, table)| (*id, table.entry));
            let leaves = self.leaves.all().into_iter();
            let leaves = leaves.map(|table| (table.id(), table.entry.index));
            own.chain(self.bytes.all()).chain(leaves).collect()
        };
        if known.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let reads = known.into_iter().map(|(id, entry)| {
            let word = maintainer.layout.catalog_entry(entry);
            (id, batch.read(word, 1))
        });
        let reads: Vec<_> = reads.collect();
        maintainer.endpoint.execute(&mut batch).await?;
        for (id, read) in reads {
            if batch.words(read)[0] == live_word(id) {
                continue;
            }
            self.forget_loads(|_, table| table == id);
            self.leaves.forget(id);
            let dropped = { write(&self.tables).remove(&id) };
            let dropped = dropped.map(|table| table.records.count());
            if let Some(records) = dropped.or_else(|| self.bytes.forget(id)) {
                tracing::info!(table = %id, records, "freed a dropped table's records");
            }
        }
        Ok(())
    }
}

fn invalid_request(bad: BadWords) -> String {
    format!("invalid request from the session: {bad}")
}

fn no_catalog(error: &PoolError) -> String {
    format!("the memory node cannot read its catalog: {error}")
}

impl Drop for UnfinishedLoad {
    fn drop(&mut self) {
        let size_bytes = self.records.len() as u64 * RECORD_SIZE_BYTES;
        self.memory_limit.give(size_bytes);
    }
}

#[cfg(test)]
mod tests;
