//! Audit of a whole node memory that is idle and was swept: checks every invariant that its bytes
//! can violate.
//!
//! | module | what it checks |
//! |---|---|
//! | `chain` | a table's leaves along their links (LEAF-6, LEAF-8) |
//! | `root` | the snapshot that the root names, and the load that it belongs to |
//! | `tree` | the tree that the root names, if the table has one |
//! | `chunks` | every chunk, and every leaf in those that splits take from |
//! | `finding` | the possible findings |
//!
//! An audit needs no session and writes nothing, so corrupted data stays unchanged. It trusts
//! nothing that it reads: any bytes lead to findings, never to a panic. While sessions are active,
//! it would report their locks and leases, and torn images. If a session died and the memory was
//! not swept, it reports findings that a sweep would resolve.
//!
//! Some checks need a chain that could be walked to its end (lost leaves, leaves that the training
//! knows). They are skipped for a table whose chain is broken: the break is the finding. They are
//! also skipped if the chain leads to a lost node. That is not a finding: nothing is corrupted, but
//! the data is gone.

mod chain;
mod chunks;
mod finding;
mod root;
mod tree;

use std::collections::BTreeSet;

use farleaf_base::{NodeId, OwnerWord, RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, BatchError, Endpoint, OperationKind};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::words::LeafGeometry;
use farleaf_pool::PoolLayout;
use farleaf_pool::allocation::{ChunkAllocator, ChunkTable};
use farleaf_pool::catalog::{CatalogEntry, EntryState};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use crate::catalog::read_catalog;
pub use finding::{Finding, Promise};

/// Result of an audit.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Violations, in the order in which they were found.
    pub findings: Vec<Finding>,
    /// Live tables whose entries are readable.
    pub tables: Vec<TableAudit>,
    /// All chunks that were ever in use.
    pub chunks: ChunkTable,
}

/// Result of an audit for a live table.
#[derive(Clone, Debug)]
pub struct TableAudit {
    /// Catalog entry of the table.
    pub entry: CatalogEntry,
    /// Leaves in the order of their links, as far as the walk went.
    pub leaves: Vec<RemoteAddr>,
    /// Number of records in the leaves.
    pub record_count: u64,
    /// First key that the walk did not reach; `None` if it reached the largest key.
    pub unseen_from: Option<u64>,
    /// Leaves that the tree lists, by lower fence, as far as the walk went; empty if the table has
    /// no tree.
    pub listed: Vec<(u64, RemoteAddr)>,
}

/// Audits the whole memory. Costs two round trips, one per 512 chunks, one per leaf, some per
/// table, and one per chunk that is free or that splits take leaves from; the last read 64 KiB
/// each. Counted as [`OperationKind::Control`].
///
/// # Errors
/// The fabric failed.
pub async fn audit<E: Endpoint>(endpoint: &E, layout: &PoolLayout) -> Result<Audit, IndexError> {
    let allocator = ChunkAllocator::new(endpoint, layout, OwnerWord::FREE);
    let mut auditor = Auditor {
        endpoint,
        layout,
        chunks: allocator.entries().await?,
        batch: Batch::new(),
        findings: Vec::new(),
    };
    let audited = auditor.look().await;
    let cost = auditor.batch.take_cost();
    endpoint.counters().record(OperationKind::Control, &cost);
    Ok(Audit {
        tables: audited?,
        findings: auditor.findings,
        chunks: auditor.chunks,
    })
}

/// State of a running audit.
struct Auditor<'a, E> {
    endpoint: &'a E,
    layout: &'a PoolLayout,
    chunks: ChunkTable,
    batch: Batch,
    findings: Vec<Finding>,
}

/// Live table, as far as it has been audited.
struct AuditedTable {
    entry: CatalogEntry,
    geometry: LeafGeometry,
    /// Leaves in the order of their links.
    chain: Vec<RemoteAddr>,
    /// Set of the leaves in `chain`.
    linked: BTreeSet<RemoteAddr>,
    record_count: u64,
    /// First key that the walk did not reach.
    seen_below: u64,
    /// Whether a load has retired the first leaf.
    is_first_retired: bool,
    /// Whether the walk reached the largest key.
    is_whole: bool,
    /// Chunks that the root names: runs, synonym leaf tables, the snapshot; `None` if the snapshot
    /// is unreadable.
    named: Option<BTreeSet<ChunkIndex>>,
    /// Inner nodes that the tree's root leads to.
    inner: BTreeSet<RemoteAddr>,
    /// Leaves that the lowest inner nodes list.
    listed: Vec<(u64, RemoteAddr)>,
}

impl<E: Endpoint> Auditor<'_, E> {
    async fn look(&mut self) -> Result<Vec<TableAudit>, IndexError> {
        let lock = self.read(self.layout.catalog_lock(), 1).await?[0];
        if lock != 0 {
            let owner = OwnerWord::from_word(lock);
            self.findings.push(Finding::CatalogLocked { owner });
        }
        let catalog = self.check_catalog().await?;
        let live = catalog.iter().filter(|it| it.state == EntryState::Live);
        let mut tables = Vec::new();
        for entry in live {
            let table = entry.record.id;
            let Some(slots) = entry.record.kind.slots() else {
                continue;
            };
            let Ok(geometry) = LeafGeometry::new(slots.into()) else {
                self.findings.push(Finding::SlotsUnknown { table, slots });
                continue;
            };
            let mut table = AuditedTable::new(entry.clone(), geometry);
            self.walk(&mut table).await?;
            self.check_root(&mut table).await?;
            tables.push(table);
        }
        self.check_chunks(&catalog, &tables).await?;
        let tables = tables.into_iter().map(|table| TableAudit {
            entry: table.entry,
            leaves: table.chain,
            record_count: table.record_count,
            unseen_from: (!table.is_whole).then_some(table.seen_below),
            listed: table.listed,
        });
        Ok(tables.collect())
    }

    /// Returns the entries in use that are readable.
    async fn check_catalog(&mut self) -> Result<Vec<CatalogEntry>, IndexError> {
        let entries = read_catalog(self.endpoint, self.layout).await?;
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        let mut catalog = Vec::new();
        for (index, entry) in (0..).zip(entries) {
            let Ok(entry) = entry else {
                self.findings.push(Finding::EntryDamaged { index });
                continue;
            };
            let Some(entry) = entry else { continue };
            let table = entry.record.id;
            // A dropped table may have the name of a table created since.
            let is_live = entry.state == EntryState::Live;
            let is_new = ids.insert(table) & (!is_live || names.insert(entry.record.name.clone()));
            if !is_new {
                self.findings.push(Finding::EntryTwice { index, table });
            }
            catalog.push(entry);
        }
        Ok(catalog)
    }

    /// Returns whether a node is lost. Then what is in use on the other nodes may be undecidable.
    fn has_lost(&self) -> bool {
        let mut all = self.layout.members().all();
        all.any(|(_, state)| state == MemberState::Lost)
    }

    /// Returns whether the node is lost, and its data with it.
    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    /// Reads words of the memory; they must lie inside it.
    async fn read(&mut self, from: WordAddr, word_count: usize) -> Result<&[u64], BatchError> {
        self.batch.clear();
        let read = self.batch.read(from, word_count);
        self.endpoint.execute(&mut self.batch).await?;
        Ok(self.batch.words(read))
    }
}

impl AuditedTable {
    fn has_tree(&self) -> bool {
        let kind = LayerKind::from_number(self.entry.record.search_layer);
        kind.is_some_and(LayerKind::has_tree)
    }

    fn has_node_writes(&self) -> bool {
        let kind = LayerKind::from_number(self.entry.record.search_layer);
        kind.is_some_and(LayerKind::has_node_writes)
    }

    fn new(entry: CatalogEntry, geometry: LeafGeometry) -> Self {
        Self {
            entry,
            geometry,
            chain: Vec::new(),
            linked: BTreeSet::new(),
            record_count: 0,
            seen_below: 0,
            is_first_retired: false,
            is_whole: false,
            named: None,
            inner: BTreeSet::new(),
            listed: Vec::new(),
        }
    }
}
