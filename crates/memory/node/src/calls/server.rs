//! The tables that the node holds in memory of its own (J5, J6).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_index::rpc::bytes::{ByteReply, ByteRequest};
use farleaf_index::rpc::{Failure, Looked, ModelNews, Reply, Request};
use farleaf_region::PoolLayout;
use farleaf_region::RegionError;
use farleaf_region::catalog::{EntryState, TableKind, live_word};
use farleaf_types::{OwnerWord, RemoteAddr, TableId};

use super::byte_server::{ByteTables, ServedByteTable};
use super::records::{RECORD_SIZE_BYTES, Records, TableRecords};
use super::room::Room;
use crate::catalog::read_catalog;
use crate::sweep::Keeper;
use crate::xstore::{Employer, LeafTable, LeafTables, Worker};

/// Loads that a session may have under way.
const LOAD_COUNT_MAX: usize = 4;

/// A table that is known.
enum Served {
    /// Its records are the node's.
    Own(Arc<ServedTable>),
    /// They are, and are byte strings.
    OwnBytes(Arc<ServedByteTable>),
    /// They are in leaves.
    Leaves(Arc<LeafTable>),
}

/// A table, and its entry in the catalog.
#[derive(Debug)]
struct ServedTable {
    entry: u64,
    records: TableRecords,
}

/// All tables.
#[derive(Debug)]
pub struct TableServer {
    tables: RwLock<BTreeMap<TableId, Arc<ServedTable>>>,
    /// Those whose records are not the node's, but whose leaves it changes.
    leaves: Arc<LeafTables>,
    bytes: ByteTables,
    /// By session, and its number of the load.
    loads: Mutex<Loads>,
    room: Arc<Room>,
}

/// Each has a lock of its own: it may take long to fill, or to free.
type Loads = HashMap<(OwnerWord, u64), Arc<Mutex<Load>>>;

/// What a load has brought so far.
#[derive(Debug)]
struct Load {
    table: TableId,
    records: Records,
    last: Option<u64>,
    room: Arc<Room>,
}

impl TableServer {
    /// No table yet. Records may take about so many bytes of memory in all.
    pub fn new(size_bytes_max: u64) -> Self {
        let room = Arc::new(Room::new(size_bytes_max));
        Self {
            tables: RwLock::default(),
            leaves: Arc::default(),
            bytes: ByteTables::new(Arc::clone(&room)),
            loads: Mutex::default(),
            room,
        }
    }

    /// Those whose leaves the node changes.
    pub fn leaves(&self) -> &Arc<LeafTables> {
        &self.leaves
    }

    /// Does what is asked; what concerns leaves, by a worker.
    ///
    /// # Errors
    /// It is no request, the catalog cannot be read, or the worker fails; in words for the client.
    pub async fn serve<E: Endpoint, B: Employer>(
        &self,
        way: (&E, &PoolLayout),
        worker: &Worker<B>,
        session: OwnerWord,
        request: &[u8],
    ) -> Result<Vec<u8>, String> {
        if ByteRequest::is_one(request) {
            return self.serve_bytes(way, session, request).await;
        }
        let decoded = Request::decode(request);
        let (id, request) = decoded.map_err(|bad| format!("the session has sent {bad}"))?;
        if let Request::LoadDrop { load } = request {
            // Whether there is the table or not.
            self.drop_load((session, load));
        }
        let reply = match self.table(way, id).await {
            Ok(Ok(Served::Own(table))) => self.execute(&table.records, (session, id), request),
            Ok(Ok(Served::Leaves(table))) => worker.execute(&table, request).await?,
            Ok(Ok(Served::OwnBytes(_))) => Reply::Failed(Failure::OfOtherKind),
            Ok(Err(failure)) => Reply::Failed(failure),
            Err(error) => return Err(no_catalog(&error)),
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        Ok(bytes)
    }

    async fn serve_bytes<E: Endpoint>(
        &self,
        way: (&E, &PoolLayout),
        session: OwnerWord,
        request: &[u8],
    ) -> Result<Vec<u8>, String> {
        let decoded = ByteRequest::decode(request);
        let (head, request) = decoded.map_err(|bad| format!("the session has sent {bad}"))?;
        // Whether there is the table or not.
        self.bytes.forget_below(session, head.lowest_open);
        if let ByteRequest::Forget { number } = request {
            self.bytes.forget_transfer(session, number);
        }
        let mut bytes = Vec::new();
        match self.table(way, head.table).await {
            Ok(Ok(Served::OwnBytes(table))) => {
                self.bytes.execute(&table, session, request, &mut bytes);
            }
            Ok(Ok(Served::Own(_) | Served::Leaves(_))) => {
                ByteReply::Failed(Failure::OfOtherKind).encode(&mut bytes);
            }
            Ok(Err(failure)) => ByteReply::Failed(failure).encode(&mut bytes),
            Err(error) => return Err(no_catalog(&error)),
        }
        Ok(bytes)
    }

    /// J6.
    async fn table<E: Endpoint>(
        &self,
        (endpoint, layout): (&E, &PoolLayout),
        id: TableId,
    ) -> Result<Result<Served, Failure>, RegionError> {
        if let Some(table) = self.tables().get(&id) {
            return Ok(Ok(Served::Own(Arc::clone(table))));
        }
        if let Some(table) = self.bytes.get(id) {
            return Ok(Ok(Served::OwnBytes(table)));
        }
        if let Some(table) = self.leaves.get(id) {
            return Ok(Ok(Served::Leaves(table)));
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
                return Ok(Ok(Served::OwnBytes(table)));
            }
            Some(LayerKind::Rpc) => {}
            Some(kind) if kind.has_node_writes() => {
                let added = self.leaves.add(entry);
                return Ok(added.map(Served::Leaves));
            }
            _ => return Ok(Err(Failure::OfLeaves)),
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let table = tables.entry(id).or_insert_with(|| {
            Arc::new(ServedTable {
                entry: entry.index,
                records: TableRecords::new(Arc::clone(&self.room)),
            })
        });
        Ok(Ok(Served::Own(Arc::clone(table))))
    }

    fn tables(&self) -> RwLockReadGuard<'_, BTreeMap<TableId, Arc<ServedTable>>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn loads(&self) -> MutexGuard<'_, Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn execute(
        &self,
        records: &TableRecords,
        (session, id): (OwnerWord, TableId),
        request: Request,
    ) -> Reply {
        match request {
            Request::Get(key) => Reply::Found(records.find(key)),
            Request::MultiGet(keys) => Reply::Several(records.find_several(&keys)),
            Request::Change(key, change) | Request::ChangeAt(key, change, _) => {
                records.change(key, change)
            }
            Request::LookUp(key, _) => Reply::Looked(Box::new(Looked {
                found: records.find(key),
                leaf: RemoteAddr::NULL,
                news: ModelNews::None,
            })),
            Request::Scan { from, limit } => Reply::Records(records.scan(from, limit as usize)),
            Request::Count => Reply::Count(records.count()),
            Request::LoadPart { load, records } => self.take_part((session, load), id, &records),
            Request::LoadCommit { load, record_count } => {
                let load = self.loads().remove(&(session, load));
                // Nobody else brings parts of it now.
                let load = load.and_then(Arc::into_inner).map(Mutex::into_inner);
                let load = load.map(|load| load.unwrap_or_else(PoisonError::into_inner));
                let is_whole =
                    |load: &Load| load.table == id && load.records.len() as u64 == record_count;
                match load.filter(is_whole) {
                    Some(mut load) => records.take_over(&mut load.records),
                    None => Reply::Failed(Failure::Unsound),
                }
            }
            Request::LoadDrop { .. } => Reply::Count(0),
        }
    }

    fn take_part(&self, of: (OwnerWord, u64), table: TableId, records: &[(u64, u64)]) -> Reply {
        let load = self.load(of, table);
        let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = load.last;
        let ascends = records.iter().all(|(key, _)| {
            let is_next = last.is_none_or(|last| *key > last);
            last = Some(*key);
            is_next
        });
        if !ascends || load.table != table {
            return Reply::Failed(Failure::Unsound);
        }
        if !self.room.take(records.len() as u64 * RECORD_SIZE_BYTES) {
            return Reply::Failed(Failure::Full);
        }
        for (key, value) in records {
            load.records.insert(*key, AtomicU64::new(*value));
        }
        load.last = last;
        Reply::Count(load.records.len() as u64)
    }

    /// A load that has begun, or begins now. A session that has many has given some up, and lost
    /// the means to say so: the oldest goes.
    fn load(&self, of: (OwnerWord, u64), table: TableId) -> Arc<Mutex<Load>> {
        let mut loads = self.loads();
        if let Some(load) = loads.get(&of) {
            return Arc::clone(load);
        }
        let of_session = loads.keys().filter(|(owner, _)| *owner == of.0);
        let oldest = of_session.clone().map(|(_, number)| *number).min();
        let is_crowded = of_session.count() >= LOAD_COUNT_MAX;
        let given_up = oldest.filter(|_| is_crowded);
        let given_up = given_up.and_then(|number| loads.remove(&(of.0, number)));
        let load = Arc::new(Mutex::new(Load {
            table,
            records: Records::new(),
            last: None,
            room: Arc::clone(&self.room),
        }));
        loads.insert(of, Arc::clone(&load));
        drop(loads);
        // That takes its time.
        drop(given_up);
        load
    }

    fn drop_load(&self, of: (OwnerWord, u64)) {
        let load = self.loads().remove(&of);
        drop(load);
    }

    /// The session is fenced: nothing of its loads will be asked for.
    pub(super) fn forget_session(&self, session: OwnerWord) {
        self.forget_loads(|(owner, _), _| owner == session);
        self.bytes.forget_session(session);
    }

    /// Frees them when the others can go on.
    fn forget_loads(&self, is_over: impl Fn((OwnerWord, u64), TableId) -> bool) {
        let mut over = Vec::new();
        self.loads().retain(|of, load| {
            let table = load.lock().unwrap_or_else(PoisonError::into_inner).table;
            let is_over = is_over(*of, table);
            if is_over {
                over.push(Arc::clone(load));
            }
            !is_over
        });
    }

    /// J6.
    pub(super) async fn forget_dropped<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
    ) -> Result<(), RegionError> {
        let known: Vec<(TableId, u64)> = {
            let tables = self.tables();
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
            let word = keeper.layout.catalog_entry(entry);
            (id, batch.read(word, 1))
        });
        let reads: Vec<_> = reads.collect();
        keeper.endpoint.execute(&mut batch).await?;
        for (id, read) in reads {
            if batch.words(read)[0] == live_word(id) {
                continue;
            }
            self.forget_loads(|_, table| table == id);
            self.leaves.forget(id);
            let dropped = {
                let tables = self.tables.write();
                tables.unwrap_or_else(PoisonError::into_inner).remove(&id)
            };
            let dropped = dropped.map(|table| table.records.count());
            if let Some(records) = dropped.or_else(|| self.bytes.forget(id)) {
                tracing::info!(table = %id, records, "forgot a dropped table's records");
            }
        }
        Ok(())
    }
}

fn no_catalog(error: &RegionError) -> String {
    format!("the memory node cannot read its catalog: {error}")
}

impl Drop for Load {
    fn drop(&mut self) {
        let size_bytes = self.records.len() as u64 * RECORD_SIZE_BYTES;
        self.room.give(size_bytes);
    }
}

#[cfg(test)]
mod tests;
