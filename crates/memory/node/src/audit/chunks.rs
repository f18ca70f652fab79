//! Every chunk, and every leaf in those that splits take from: in use, or free.

use std::collections::{BTreeMap, BTreeSet};

use farleaf_fabric::{BatchError, Endpoint};
use farleaf_index::tree::node::lease_shape;
use farleaf_leaf::LeaseShape;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{BLOCK_SIZE_WORDS, OwnerWord, RemoteAddr, TableId};

use super::{AuditedTable, Auditor, Finding};

const CHUNK_SIZE_WORDS: usize = (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize;

impl<E: Endpoint> Auditor<'_, E> {
    /// Looks at all chunks, after the tables.
    pub(super) async fn look_at_chunks(
        &mut self,
        catalog: &[CatalogEntry],
        tables: &[AuditedTable],
    ) -> Result<(), BatchError> {
        let known: BTreeSet<TableId> = catalog.iter().map(|entry| entry.record.id).collect();
        let by_id: BTreeMap<TableId, &AuditedTable> = tables
            .iter()
            .map(|table| (table.entry.record.id, table))
            .collect();
        let of_leaves = tables.iter().flat_map(|table| {
            let leaves = table.chain.iter();
            leaves.filter_map(|leaf| self.chunks_of(*leaf, table.geometry))
        });
        let used: BTreeSet<ChunkIndex> = of_leaves.flatten().collect();
        let chunks: Vec<(ChunkIndex, ChunkEntry)> = {
            let all = self.chunks.iter();
            all.map(|(index, chunk)| (index, *chunk)).collect()
        };
        for (index, chunk) in chunks {
            let of = by_id.get(&chunk.table);
            if of.is_some() && !chunk.owner.is_free() && self.has_lost() {
                // What of it is in use is said where nobody can read it: the node keeps it.
                continue;
            }
            if !chunk.owner.is_free() {
                let owner = chunk.owner;
                self.findings.push(Finding::ChunkLeased {
                    chunk: index,
                    owner,
                });
            }
            if chunk.purpose == Some(ChunkPurpose::Free) {
                self.look_at_free(index).await?;
            } else if let Some(table) = of {
                self.look_at_used(table, (index, &chunk), &used).await?;
            } else if !known.contains(&chunk.table) {
                // A dropped table's chunks wait for its grace period.
                let table = chunk.table;
                self.findings.push(Finding::ChunkOfNoTable {
                    chunk: index,
                    table,
                });
            }
        }
        for table in tables {
            self.look_at_named(table);
        }
        Ok(())
    }

    /// A4.
    async fn look_at_free(&mut self, index: ChunkIndex) -> Result<(), BatchError> {
        let start = self.layout.chunk_start(index).word_at(0);
        let words = self.read(start, CHUNK_SIZE_WORDS).await?;
        if words.iter().any(|word| *word != 0) {
            self.findings.push(Finding::ChunkNotZero { chunk: index });
        }
        Ok(())
    }

    /// W4, and W3 in chunks that splits take from.
    async fn look_at_used(
        &mut self,
        table: &AuditedTable,
        (index, chunk): (ChunkIndex, &ChunkEntry),
        used: &BTreeSet<ChunkIndex>,
    ) -> Result<(), BatchError> {
        let id = table.entry.record.id;
        let is_named = table
            .named
            .as_ref()
            .is_none_or(|named| named.contains(&index));
        let of_no_load = |generation| Finding::ChunkOfNoLoad {
            chunk: index,
            table: id,
            generation,
        };
        match chunk.purpose {
            Some(ChunkPurpose::Leaves { slots } | ChunkPurpose::Run { slots, .. })
                if slots != table.geometry.slots() =>
            {
                self.findings.push(Finding::ChunkOfOtherSlots {
                    chunk: index,
                    table: id,
                    slots,
                });
            }
            Some(ChunkPurpose::Leaves { .. }) => {
                let shape = LeaseShape::leaves(table.geometry);
                let first = table.entry.record.first_leaf.place();
                let is_used = |leaf| table.linked.contains(&leaf) || leaf == first;
                // The walk has seen the locks of those that are used.
                self.look_at_pieces(table, (index, chunk), shape, (is_used, false))
                    .await?;
            }
            Some(ChunkPurpose::Run { generation, .. }) if !is_named => {
                self.findings.push(of_no_load(generation));
            }
            Some(ChunkPurpose::Run { .. }) => {
                if table.is_whole && !used.contains(&index) && !self.has_lost() {
                    self.findings.push(Finding::RunChunkUnused {
                        chunk: index,
                        table: id,
                    });
                }
            }
            Some(ChunkPurpose::Snapshot { generation }) => {
                // The snapshot that a table is made with stays until somebody retrains.
                if !is_named && generation != 0 {
                    self.findings.push(of_no_load(generation));
                }
            }
            Some(ChunkPurpose::Inner { generation }) => {
                if is_named {
                    let shape = lease_shape(generation);
                    let is_used = |node| table.inner.contains(&node);
                    self.look_at_pieces(table, (index, chunk), shape, (is_used, true))
                        .await?;
                } else if generation != 0 {
                    self.findings.push(of_no_load(generation));
                }
            }
            // Z3. Which of them are in use only the node's process knows.
            Some(ChunkPurpose::Models) if table.has_node_writes() => {}
            // BV6: what of them is in use, holders and pages tell, which are not looked at here.
            Some(ChunkPurpose::Blocks { .. } | ChunkPurpose::Extent { .. }) => {}
            Some(ChunkPurpose::Free | ChunkPurpose::Rings | ChunkPurpose::Models) | None => {
                self.findings.push(Finding::PurposeUnknown { chunk: index });
            }
        }
        Ok(())
    }

    /// W3: free leaves, or inner nodes, and those in use make up the chunk.
    async fn look_at_pieces(
        &mut self,
        table: &AuditedTable,
        (index, chunk): (ChunkIndex, &ChunkEntry),
        shape: LeaseShape,
        (is_used, tells_all_locks): (impl Fn(RemoteAddr) -> bool, bool),
    ) -> Result<(), BatchError> {
        let id = table.entry.record.id;
        let free: BTreeSet<u64> = chunk.free.iter(shape.piece_count).collect();
        let (found, possible) = (chunk.free.count(), free.len() as u64);
        if found != possible {
            self.findings.push(Finding::FreeBeyondEnd {
                chunk: index,
                found,
                possible,
            });
        }
        let start = self.layout.chunk_start(index);
        let words = self.read(start.word_at(0), CHUNK_SIZE_WORDS).await?;
        let stride_words = (shape.stride_blocks * BLOCK_SIZE_WORDS) as usize;
        let locks: Vec<u64> = words
            .chunks_exact(stride_words)
            .map(|piece| piece[0])
            .collect();
        for (number, lock) in (0..shape.piece_count).zip(locks) {
            let leaf = start.offset_blocks(number * shape.stride_blocks);
            let is_used = is_used(leaf);
            if lock != 0 && (tells_all_locks || !is_used) {
                let owner = OwnerWord::from_word(lock);
                self.findings.push(Finding::LeafLocked { leaf, owner });
            }
            // Not of a leased chunk: its pieces' bits hold only while nobody leases it.
            if !chunk.owner.is_free() {
                continue;
            }
            match (free.contains(&number), is_used) {
                (true, true) => {
                    self.findings
                        .push(Finding::LeafFreeAndUsed { table: id, leaf });
                }
                // U4: a split whose leaf was lost in the middle of it has used one.
                (false, false) if table.is_whole && !self.has_lost() => {
                    self.findings.push(Finding::LeafLost { table: id, leaf });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// All that the root names is the table's, and is what it is named as.
    fn look_at_named(&mut self, table: &AuditedTable) {
        let (id, generation) = (table.entry.record.id, table.entry.root.spare());
        let Some(named) = &table.named else {
            return;
        };
        let is_own = |index: &&ChunkIndex| {
            let chunk = self.chunks.get(**index);
            chunk.is_some_and(|chunk| {
                let is_used = !matches!(chunk.purpose, None | Some(ChunkPurpose::Free));
                chunk.table == id && is_used
            })
        };
        let is_there = |index: &&ChunkIndex| !self.is_lost(index.node());
        let named = || named.iter().filter(is_there);
        let (found, expected) = (named().filter(is_own).count(), named().count());
        if found != expected {
            self.findings.push(Finding::NamedChunkMissing {
                table: id,
                generation,
                found: found as u64,
                expected: expected as u64,
            });
        }
    }
}
