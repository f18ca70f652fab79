//! Looking over a whole region in which nobody works and which was swept: is every promise kept
//! that its bytes can break?
//!
//! | module | what it looks at |
//! |---|---|
//! | `chain` | a table's leaves along their links (D6, D8) |
//! | `root` | the snapshot that the root names, and the load that it is of (B2 to B4) |
//! | `tree` | the tree that the root names, if the table has one (I2, I3, I5) |
//! | `chunks` | every chunk, and every leaf in those that splits take from (A1, A4, W3, W4) |
//! | `finding` | what can be found |
//!
//! It needs no session and writes nothing: what is damaged stays as it was met. Nothing that it
//! reads is believed, so any bytes lead to findings, none to a panic. While others work it would
//! find their locks and leases, and images that are torn; a region of which somebody died and that
//! was not swept has findings, too, which the sweep ends.
//!
//! What follows only from a chain that could be walked to its end (leaves that are lost, leaves
//! that training knows) is not looked for in a table whose chain is broken: the break is the
//! finding. Nor where the chain leads to a node that is lost (U4), which is no finding: nothing of
//! the pool's is broken, it is gone.

mod chain;
mod chunks;
mod finding;
mod root;
mod tree;

use std::collections::BTreeSet;

use farleaf_fabric::{Batch, BatchError, Endpoint, OperationKind};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::LeafGeometry;
use farleaf_region::PoolLayout;
use farleaf_region::allocation::{ChunkAllocator, ChunkTable};
use farleaf_region::catalog::{CatalogEntry, EntryState};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;
use farleaf_types::{NodeId, OwnerWord, RemoteAddr, WordAddr};

use crate::catalog::read_catalog;
pub use finding::{Finding, Promise};

/// What an audit saw.
#[derive(Clone, Debug)]
pub struct Audit {
    /// What breaks a promise, in the order in which it was met.
    pub findings: Vec<Finding>,
    /// The live tables whose entries can be read.
    pub tables: Vec<TableAudit>,
    /// All chunks that were ever handed out.
    pub chunks: ChunkTable,
}

/// What an audit saw of a live table.
#[derive(Clone, Debug)]
pub struct TableAudit {
    /// The table.
    pub entry: CatalogEntry,
    /// Its leaves in the order of their links, as far as the walk came.
    pub leaves: Vec<RemoteAddr>,
    /// Records in them.
    pub record_count: u64,
    /// The first key that the walk did not come to; `None`: it came to the largest key.
    pub unseen_from: Option<u64>,
    /// What its tree lists, if it has one, as far as the walk came: leaves, by lower fence.
    pub listed: Vec<(u64, RemoteAddr)>,
}

/// Looks over the whole region. Costs two round trips, one per 512 chunks, one per leaf, some per
/// table, and one per chunk that is free or that splits take leaves from; those read 64 KiB each.
/// Counted as [`OperationKind::Control`].
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

/// An audit that is under way.
struct Auditor<'a, E> {
    endpoint: &'a E,
    layout: &'a PoolLayout,
    chunks: ChunkTable,
    batch: Batch,
    findings: Vec<Finding>,
}

/// A live table, as far as it has been looked at.
struct AuditedTable {
    entry: CatalogEntry,
    geometry: LeafGeometry,
    /// Its leaves in the order of their links.
    chain: Vec<RemoteAddr>,
    /// The same, to ask for one.
    linked: BTreeSet<RemoteAddr>,
    record_count: u64,
    /// The walk came to all keys below this one.
    seen_below: u64,
    /// A load has retired the first leaf.
    is_first_retired: bool,
    /// The walk came to the largest key.
    is_whole: bool,
    /// Chunks that the root names: runs, synonym leaf tables, the snapshot; `None`: it cannot be
    /// read.
    named: Option<BTreeSet<ChunkIndex>>,
    /// Inner nodes that the tree's root leads to.
    inner: BTreeSet<RemoteAddr>,
    /// What those above the leaves list.
    listed: Vec<(u64, RemoteAddr)>,
}

impl<E: Endpoint> Auditor<'_, E> {
    async fn look(&mut self) -> Result<Vec<TableAudit>, IndexError> {
        let lock = self.read(self.layout.catalog_lock(), 1).await?[0];
        if lock != 0 {
            let owner = OwnerWord::from_word(lock);
            self.findings.push(Finding::CatalogLocked { owner });
        }
        let catalog = self.look_at_catalog().await?;
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
            self.look_at_root(&mut table).await?;
            tables.push(table);
        }
        self.look_at_chunks(&catalog, &tables).await?;
        let tables = tables.into_iter().map(|table| TableAudit {
            entry: table.entry,
            leaves: table.chain,
            record_count: table.record_count,
            unseen_from: (!table.is_whole).then_some(table.seen_below),
            listed: table.listed,
        });
        Ok(tables.collect())
    }

    /// The entries that are not free and can be read.
    async fn look_at_catalog(&mut self) -> Result<Vec<CatalogEntry>, IndexError> {
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
            // A dropped table may have the name of one that was made since.
            let is_live = entry.state == EntryState::Live;
            let is_new = ids.insert(table) & (!is_live || names.insert(entry.record.name.clone()));
            if !is_new {
                self.findings.push(Finding::EntryTwice { index, table });
            }
            catalog.push(entry);
        }
        Ok(catalog)
    }

    /// U4: whether a node is lost. Then it may be that nobody can tell what is in use elsewhere.
    fn has_lost(&self) -> bool {
        let mut all = self.layout.members().all();
        all.any(|(_, state)| state == MemberState::Lost)
    }

    /// U4: what was there is gone with its node.
    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    /// Words of the region, which must be inside.
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
