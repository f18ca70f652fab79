//! Audits a table's leaves along their links.

use std::collections::BTreeSet;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{BatchError, Endpoint};
use farleaf_leaf::words::{LeafGeometry, LeafImage};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::{AuditedTable, Auditor, Finding};

/// Leaf as read, without its records.
struct Leaf {
    lock: u64,
    is_intact: bool,
    low: u64,
    high: u64,
    link: RemoteAddr,
    record_count: u64,
    is_sound: bool,
}

impl Leaf {
    /// Creates a leaf from `words`: the whole leaf, beginning with its lock.
    fn new(words: &[u64], table: &AuditedTable, place: RemoteAddr) -> Self {
        let image = LeafImage::new(table.geometry, &words[1..]);
        let mut records = Vec::with_capacity(table.geometry.slot_count());
        image.append_sorted(0, &mut records);
        let fences = image.low()..=image.high();
        let is_sound = records.iter().all(|(key, _)| fences.contains(key))
            && records.windows(2).all(|pair| pair[0].0 < pair[1].0);
        Self {
            lock: words[0],
            is_intact: image.is_intact(place, table.entry.record.id),
            low: image.low(),
            high: image.high(),
            link: image.link(),
            record_count: records.len() as u64,
            is_sound,
        }
    }
}

impl<E: Endpoint> Auditor<'_, E> {
    /// Follows the links from the first leaf that the table ever had to the leaf of the largest
    /// key.
    pub(super) async fn walk(&mut self, table: &mut AuditedTable) -> Result<(), BatchError> {
        let id = table.entry.record.id;
        let mut met = BTreeSet::new();
        let (mut place, mut due) = (table.entry.record.first_leaf.place(), 0);
        // Findings about retired leaves since the last leaf that is not retired.
        let mut retired = Vec::new();
        loop {
            if self.is_lost(place.node()) {
                // The retrainer that moved it there could not link past what it retired.
                self.findings.retain(|finding| !retired.contains(finding));
                return Ok(());
            }
            if !self.is_place(table, place) {
                let leaf = place;
                self.findings
                    .push(Finding::LeafElsewhere { table: id, leaf });
                return Ok(());
            }
            if !met.insert(place) {
                let leaf = place;
                self.findings
                    .push(Finding::LeafLinkedTwice { table: id, leaf });
                return Ok(());
            }
            let lock = table.geometry.lock(place);
            let words = self.read(lock, table.geometry.leaf_size_words()).await?;
            let leaf = Leaf::new(words, table, place);
            // A recovery of such a leaf looks at what it links to (LEAF-8), if that exists.
            let is_cut_off = self.is_lost(leaf.link.node());
            if is_cut_off && !leaf.is_intact {
                return Ok(());
            }
            if leaf.lock != 0 && !is_cut_off {
                let owner = OwnerWord::from_word(leaf.lock);
                self.findings
                    .push(Finding::LeafLocked { leaf: place, owner });
            }
            if !leaf.is_intact {
                let leaf = place;
                self.findings.push(Finding::LeafDamaged { table: id, leaf });
                return Ok(());
            }
            if leaf.link.is_retired() {
                if met.len() == 1 {
                    table.is_first_retired = true;
                } else {
                    let leaf = place;
                    retired.push(Finding::LeafRetired { table: id, leaf });
                    self.findings.extend(retired.last().cloned());
                }
                place = leaf.link.place();
                continue;
            }
            retired.clear();
            self.check_range(table, place, &leaf, due);
            table.chain.push(place);
            table.linked.insert(place);
            table.record_count += leaf.record_count;
            let Some(next) = leaf.high.checked_add(1) else {
                table.is_whole = true;
                return Ok(());
            };
            (place, due) = (leaf.link.place(), next);
            table.seen_below = due;
            if place.is_null() {
                self.findings.push(Finding::ChainShort { table: id, due });
                return Ok(());
            }
        }
    }

    /// Checks LEAF-6 for one leaf, whose first key must be `due`.
    fn check_range(&mut self, table: &AuditedTable, place: RemoteAddr, leaf: &Leaf, due: u64) {
        let id = table.entry.record.id;
        if leaf.low != due || leaf.low > leaf.high {
            self.findings.push(Finding::RangeBroken {
                table: id,
                leaf: place,
                low: leaf.low,
                high: leaf.high,
                due,
            });
        }
        if !leaf.is_sound {
            let leaf = place;
            self.findings
                .push(Finding::RecordMisplaced { table: id, leaf });
        }
    }

    /// Returns the chunks in which a leaf begins and ends: two, for some leaves of runs.
    pub(super) fn chunks_of(
        &self,
        place: RemoteAddr,
        geometry: LeafGeometry,
    ) -> Option<[ChunkIndex; 2]> {
        let first = self.layout.chunk_of(place)?;
        let last = place.offset_blocks(geometry.stride_blocks() - 1);
        Some([first, self.layout.chunk_of(last)?])
    }

    /// Returns whether the table may have a leaf at this address: in a chunk that splits take from,
    /// or in chunks of runs.
    fn is_place(&self, table: &AuditedTable, place: RemoteAddr) -> bool {
        let Some(chunks) = self.chunks_of(place, table.geometry) else {
            return false;
        };
        let own_slots = table.geometry.slots();
        chunks.into_iter().all(|index| {
            let Some(chunk) = self.chunks.get(index) else {
                return false;
            };
            let is_fit = match chunk.purpose {
                Some(ChunkPurpose::Leaves { slots }) => {
                    let start = self.layout.chunk_start(index);
                    let stride = table.geometry.stride_blocks();
                    let inside = place.block().checked_sub(start.block());
                    let is_one = |inside: u64| {
                        let leaf_count = table.geometry.chunk_leaf_count();
                        inside.is_multiple_of(stride) && inside / stride < leaf_count
                    };
                    slots == own_slots && inside.is_some_and(is_one)
                }
                // The audit of chunks checks whether the root names the run.
                Some(ChunkPurpose::Run { slots, .. }) => slots == own_slots,
                _ => false,
            };
            is_fit && chunk.table == table.entry.record.id
        })
    }
}
