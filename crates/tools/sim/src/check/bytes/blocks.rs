//! Value blocks: each has one reference or is free. No session that could hold one is alive.

use std::collections::{BTreeMap, BTreeSet};

use farleaf_base::RemoteAddr;
use farleaf_fabric::BatchError;
use farleaf_leaf::blobs::{BODY_WORD, FatPointer, Form, HOLDER_WORD, SETTLED, SizeClass};
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};

use super::TableCheck;
use super::chain::Chain;

/// References of pages and lists whose blocks the scan of chunks has not met yet.
struct PendingReferences {
    linked: BTreeMap<RemoteAddr, FatPointer>,
    parts: BTreeSet<RemoteAddr>,
}

impl TableCheck<'_> {
    /// Accounts for every piece and extent of the table.
    pub(super) fn account_for_blocks(
        &mut self,
        chain: &Chain,
        chunks: &ChunkTable,
    ) -> Result<(), BatchError> {
        let mut due = self.due(chain)?;
        let own = chunks.iter().filter(|(_, chunk)| chunk.table == self.table);
        let own: Vec<_> = own.collect();
        let mut extent_end = None;
        for (index, chunk) in own {
            let start = self.keeper.layout.chunk_start(index);
            match chunk.purpose {
                Some(ChunkPurpose::Blocks { class }) => match SizeClass::from_number(class) {
                    Some(class) => self.account_for_pieces(start, class, chunk, &mut due)?,
                    None => self.report_violation(
                        "leaks",
                        format!("chunk {index:?} has the invalid size class {class}"),
                    ),
                },
                Some(ChunkPurpose::Extent { position: 0 }) => {
                    let is_linked = due.linked.remove(&start).is_some();
                    if is_linked == due.parts.remove(&start) {
                        let how = format!(
                            "extent {start} has two references or none; page reference: {is_linked}"
                        );
                        self.report_violation("leaks", how);
                    }
                    self.check_holder(start)?;
                    extent_end = Some((index.0 + 1, 1));
                }
                Some(ChunkPurpose::Extent { position }) => {
                    if extent_end != Some((index.0, position)) {
                        self.report_violation(
                            "leaks",
                            format!("chunk {index:?} does not belong to an extent"),
                        );
                    }
                    extent_end = Some((index.0 + 1, position + 1));
                }
                _ => {}
            }
        }
        for (place, pointer) in due.linked {
            self.report_violation(
                "leaks",
                format!("{pointer} refers to {place}, which is not a block"),
            );
        }
        for place in due.parts {
            self.report_violation(
                "leaks",
                format!("a list refers to a part at {place}, which is not a block"),
            );
        }
        Ok(())
    }

    /// Collects the references to blocks and reports a block that has two.
    fn due(&mut self, chain: &Chain) -> Result<PendingReferences, BatchError> {
        let mut due = PendingReferences {
            linked: BTreeMap::new(),
            parts: BTreeSet::new(),
        };
        for pointer in &chain.linked {
            if due.linked.insert(pointer.place(), *pointer).is_some() {
                self.report_violation("leaks", format!("{pointer} has two references"));
            }
            if matches!(pointer.form(), Form::List(_)) {
                let body = pointer.place().word_at(BODY_WORD);
                let count = self.read(body, 1)?[0];
                let parts = self.read(body.offset(1), count as usize)?.into_iter();
                let places = parts.map(|part| RemoteAddr::from_word(part).place());
                due.parts.extend(places);
            }
        }
        Ok(due)
    }

    fn account_for_pieces(
        &mut self,
        start: RemoteAddr,
        class: SizeClass,
        chunk: &ChunkEntry,
        due: &mut PendingReferences,
    ) -> Result<(), BatchError> {
        for piece in 0..class.piece_count() {
            let place = start.offset_blocks(piece * class.stride_blocks());
            let pointer = due.linked.remove(&place);
            let is_fit = |pointer: FatPointer| {
                [Form::Piece(class), Form::List(class)].contains(&pointer.form())
            };
            match (chunk.free.contains(piece), pointer) {
                (true, None) => {}
                (true, Some(pointer)) => {
                    self.report_violation(
                        "leaks",
                        format!("{pointer} is free but has a reference"),
                    );
                }
                (false, Some(pointer)) if is_fit(pointer) => self.check_holder(place)?,
                (false, Some(pointer)) => {
                    self.report_violation(
                        "leaks",
                        format!("{pointer} is in a chunk of a different size class: {class:?}"),
                    );
                }
                (false, None) => {
                    let holder = self.read(place.word_at(HOLDER_WORD), 1)?[0];
                    let how = format!("leaked block at {place}; holder {holder:#x}");
                    self.report_violation("leaks", how);
                }
            }
        }
        Ok(())
    }

    /// Checks that a sweep has settled every block that a dead session had linked.
    fn check_holder(&mut self, place: RemoteAddr) -> Result<(), BatchError> {
        let holder = self.read(place.word_at(HOLDER_WORD), 1)?[0];
        if holder != SETTLED {
            let how = format!("the block at {place} is not settled; holder {holder:#x}");
            self.report_violation("sweeping", how);
        }
        Ok(())
    }
}
