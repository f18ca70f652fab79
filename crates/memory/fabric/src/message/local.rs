//! Looks at memory that is near: the ring that the others write into.

use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_types::WordAddr;

/// Copies words from memory that `near` can look at. Words that are to be read after others must be
/// asked for by another call (E2).
pub(crate) async fn load<N: Endpoint>(
    near: &N,
    batch: &mut Batch,
    from: WordAddr,
    to: &mut [u64],
) -> Result<(), BatchError> {
    if near.read_at_once(from, to) {
        return Ok(());
    }
    batch.clear();
    let read = batch.read(from, to.len());
    near.execute(batch).await?;
    to.copy_from_slice(batch.words(read));
    Ok(())
}
