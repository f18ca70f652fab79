//! Directions of scans over a table of words.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::operation::{ReverseScanCursor, ScanCursor};
use farleaf_index::rpc::WordRequest;
use farleaf_index::{Index, IndexError};

/// Cursor of a scan in one direction.
pub(crate) trait DirectedCursor {
    /// Creates a cursor from a key on, inclusive.
    fn from(key: u64) -> Self;

    /// Creates a cursor that has passed all keys.
    fn at_end() -> Self;

    /// Returns the next key that was not passed yet; `None` at the end.
    fn next_key(&self) -> Option<u64>;

    /// Returns the key behind another in this direction.
    fn key_behind(key: u64) -> Option<u64>;

    /// Returns whether a key comes before another in this direction.
    fn precedes(one: u64, next: u64) -> bool;

    /// Returns the request that reads records from a key on.
    fn request(from: u64, limit: u64) -> WordRequest;

    /// Reads at least `wanted` records, or all that are left.
    async fn read<E: Endpoint>(
        &mut self,
        index: &Index<'_, E>,
        batch: &mut Batch,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError>;

    /// Sets the leaf of the next key, as returned by the memory node.
    fn set_leaf<E: Endpoint>(&mut self, index: &Index<'_, E>, leaf: RemoteAddr);
}

macro_rules! directed {
    ($cursor:ident, $scan:ident, $set_leaf:ident, $step:ident, $order:tt, $request:ident) => {
        impl DirectedCursor for $cursor {
            fn from(key: u64) -> Self {
                Self::from(key)
            }

            fn at_end() -> Self {
                Self::at_end()
            }

            fn next_key(&self) -> Option<u64> {
                self.next_key()
            }

            fn key_behind(key: u64) -> Option<u64> {
                key.$step(1)
            }

            fn precedes(one: u64, next: u64) -> bool {
                one $order next
            }

            fn request(from: u64, limit: u64) -> WordRequest {
                WordRequest::$request { from, limit }
            }

            async fn read<E: Endpoint>(
                &mut self,
                index: &Index<'_, E>,
                batch: &mut Batch,
                wanted: usize,
                records: &mut Vec<(u64, u64)>,
            ) -> Result<(), IndexError> {
                index.$scan(batch, self, wanted, records).await
            }

            fn set_leaf<E: Endpoint>(&mut self, index: &Index<'_, E>, leaf: RemoteAddr) {
                index.$set_leaf(self, leaf);
            }
        }
    };
}

directed!(ScanCursor, scan, set_leaf, checked_add, <, Scan);
directed!(ReverseScanCursor, scan_reverse, set_reverse_leaf, checked_sub, >, ScanReverse);
