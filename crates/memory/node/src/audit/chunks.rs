//! Audits every chunk, and every leaf in chunks that splits take from: in use, or free.

use std::collections::{BTreeMap, BTreeSet};

use farleaf_base::{BLOCK_SIZE_WORDS, OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::{BatchError, Endpoint};
use farleaf_index::tree::node::lease_shape;
use farleaf_leaf::words::LeaseShape;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};

use super::{AuditedTable, Auditor, Finding};

const CHUNK_SIZE_WORDS: usize = (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize;

impl<E: Endpoint> Auditor<'_, E> {
    /// Checks all chunks, after the tables.
    pub(super) async fn check_chunks(
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
                // The node keeps this chunk: what is in use of it depends on data of a lost node.
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
                self.check_free_chunk(index).await?;
            } else if let Some(table) = of {
                self.check_used_chunk(table, index, &chunk, &used).await?;
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
            self.check_named_chunks(table);
        }
        Ok(())
    }

    /// Checks that a free chunk is zero.
    async fn check_free_chunk(&mut self, index: ChunkIndex) -> Result<(), BatchError> {
        let start = self.layout.chunk_start(index).word_at(0);
        let words = self.read(start, CHUNK_SIZE_WORDS).await?;
        if words.iter().any(|word| *word != 0) {
            self.findings.push(Finding::ChunkNotZero { chunk: index });
        }
        Ok(())
    }

    /// Checks a chunk in use, and its leaves if splits take from it.
    async fn check_used_chunk(
        &mut self,
        table: &AuditedTable,
        index: ChunkIndex,
        chunk: &ChunkEntry,
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
                // The walk has checked the locks of those in use.
                self.check_pieces(table, index, chunk, shape, is_used, false)
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
                // The snapshot that a table is created with stays until the first retraining.
                if !is_named && generation != 0 {
                    self.findings.push(of_no_load(generation));
                }
            }
            Some(ChunkPurpose::Inner { generation }) => {
                if is_named {
                    let shape = lease_shape(generation);
                    let is_used = |node| table.inner.contains(&node);
                    self.check_pieces(table, index, chunk, shape, is_used, true)
                        .await?;
                } else if generation != 0 {
                    self.findings.push(of_no_load(generation));
                }
            }
            // Only the node's process knows which of these are in use.
            Some(ChunkPurpose::Models) if table.has_node_writes() => {}
            // Which value blocks are in use depends on holders and pages, which this audit does not
            // read.
            Some(ChunkPurpose::Blocks { .. } | ChunkPurpose::Extent { .. }) => {}
            Some(ChunkPurpose::Free | ChunkPurpose::Rings | ChunkPurpose::Models) | None => {
                self.findings.push(Finding::PurposeUnknown { chunk: index });
            }
        }
        Ok(())
    }

    /// Checks that every leaf or inner node of the chunk is either free or in use.
    async fn check_pieces(
        &mut self,
        table: &AuditedTable,
        index: ChunkIndex,
        chunk: &ChunkEntry,
        shape: LeaseShape,
        is_used: impl Fn(RemoteAddr) -> bool,
        tells_all_locks: bool,
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
            // In a leased chunk, the bits are stale: they are valid only while the chunk is not
            // leased.
            if !chunk.owner.is_free() {
                continue;
            }
            match (free.contains(&number), is_used) {
                (true, true) => {
                    self.findings
                        .push(Finding::LeafFreeAndUsed { table: id, leaf });
                }
                // A split whose leaf was lost in the middle of it has used one.
                (false, false) if table.is_whole && !self.has_lost() => {
                    self.findings.push(Finding::LeafLost { table: id, leaf });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that everything that the root names belongs to the table and has the named purpose.
    fn check_named_chunks(&mut self, table: &AuditedTable) {
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
