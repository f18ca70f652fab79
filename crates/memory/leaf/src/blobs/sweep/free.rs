//! Frees blocks that the node has taken over, after their grace period.

use farleaf_base::SequenceNumber;
use farleaf_fabric::Endpoint;
use farleaf_pool::allocation::FreeOutcome;

use super::{BlockSweepReport, BlockSweeper, Waiting, passed};
use crate::blobs::access::BlockAccess;
use crate::blobs::error::BlockError;
use crate::blobs::lease::{MarkOutcome, by_chunk};
use crate::blobs::pointer::{FatPointer, Form};

/// Sequence of blocks that wait only until their chunk is not leased.
const NO_GRACE_SEQUENCE: Option<SequenceNumber> = Some(SequenceNumber(0));

impl BlockSweeper {
    /// Frees blocks whose number every session but the node's has published. The node's own session
    /// has no operation in progress here.
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
            if access.mark_free(chunk, class, &pieces).await? == MarkOutcome::Done {
                report.freed_count += pieces.len() as u64;
                continue;
            }
            for piece in pieces {
                self.wait_with(piece, NO_GRACE_SEQUENCE);
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
        if access.free_extent(pointer).await? == FreeOutcome::Busy {
            self.wait_with(pointer, NO_GRACE_SEQUENCE);
        } else {
            report.freed_count += 1;
        }
        Ok(())
    }
}
