//! Reads of local memory: of the ring that the peer writes into.

use crate::{Batch, BatchError, Endpoint};
use farleaf_base::WordAddr;

/// Copies words from memory that `local_endpoint` can read. Words that must be read after others
/// need a separate call, because the words of one READ have no order.
pub(crate) async fn load<N: Endpoint>(
    local_endpoint: &N,
    batch: &mut Batch,
    from: WordAddr,
    to: &mut [u64],
) -> Result<(), BatchError> {
    if local_endpoint.read_at_once(from, to) {
        return Ok(());
    }
    batch.clear();
    let read = batch.read(from, to.len());
    local_endpoint.execute(batch).await?;
    to.copy_from_slice(batch.words(read));
    Ok(())
}
