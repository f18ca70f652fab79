//! What the node has taken over, when its grace period is over.

use farleaf_fabric::Endpoint;
use farleaf_region::allocation::Freed;
use farleaf_types::SequenceNumber;

use super::{BlockSweepReport, BlockSweeper, Waiting, passed};
use crate::access::BlockAccess;
use crate::error::BlockError;
use crate::lease::{Marked, by_chunk};
use crate::pointer::{FatPointer, Form};

/// What waits for nobody but who has its chunk just now.
const NO_MORE_GRACE: Option<SequenceNumber> = Some(SequenceNumber(0));

impl BlockSweeper {
    /// Frees what every session but the node's has passed: it has no operation under way here.
    pub(super) async fn free_passed<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        report: &mut BlockSweepReport,
    ) -> Result<(), BlockError> {
        if self.waiting.borrow().is_empty() {
            return Ok(());
        }
        let passed = passed(access).await?;
        let is_over = |waiting: &mut Waiting| {
            let sequence = waiting.sequence;
            sequence.is_some_and(|sequence| sequence <= passed)
        };
        let over: Vec<FatPointer> = {
            let mut waiting = self.waiting.borrow_mut();
            let over = waiting.extract_if(.., is_over);
            over.map(|waiting| waiting.pointer).collect()
        };
        let mut pieces = Vec::new();
        for pointer in over {
            match pointer.form() {
                Form::Piece(_) => pieces.push(pointer),
                Form::Extent => self.free_extent(access, pointer, report).await?,
                Form::List(class) => {
                    let parts = access
                        .hold_parts(&mut access.control_batch(), pointer)
                        .await?;
                    for part in parts {
                        self.free_extent(access, part, report).await?;
                    }
                    pieces.push(pointer.next(Form::Piece(class)));
                }
            }
        }
        for ((chunk, class), pieces) in by_chunk(access, pieces) {
            if access.mark_free(chunk, class, &pieces).await? == Marked::Done {
                report.freed_count += pieces.len() as u64;
                continue;
            }
            for piece in pieces {
                self.wait_with(piece, NO_MORE_GRACE);
            }
        }
        Ok(())
    }

    async fn free_extent<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
        report: &mut BlockSweepReport,
    ) -> Result<(), BlockError> {
        if access.free_extent(pointer).await? == Freed::Busy {
            self.wait_with(pointer, NO_MORE_GRACE);
        } else {
            report.freed_count += 1;
        }
        Ok(())
    }
}
