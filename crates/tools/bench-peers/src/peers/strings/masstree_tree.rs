//! Masstree crate over byte strings, with values on the heap.

use masstree::{MassTree15, RangeBound};
use seize::{Guard, LocalGuard};

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Sink, StringRecords};

/// Tree, loaded in ascending order.
pub struct MasstreeStringPeer(MassTree15<Box<[u8]>>);

impl MasstreeStringPeer {
    /// Loads the records with their first values.
    ///
    /// # Errors
    /// None.
    pub fn load(records: &StringRecords) -> Result<Self, PeerError> {
        let tree = MassTree15::new();
        {
            let mut guard = tree.guard();
            records.for_each_first(|key, value| {
                tree.insert_with_guard(key, value.into(), &guard);
                guard.refresh();
                Ok::<(), PeerError>(())
            })?;
        }
        Ok(Self(tree))
    }
}

/// Client that stays guarded between pauses.
pub struct MasstreeStringClient<'a> {
    tree: &'a MassTree15<Box<[u8]>>,
    guard: LocalGuard<'a>,
}

impl Peer<StringRecords> for MasstreeStringPeer {
    type Client<'a> = MasstreeStringClient<'a>;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(MasstreeStringClient {
            tree: &self.0,
            guard: self.0.guard(),
        })
    }
}

impl Client<StringRecords> for MasstreeStringClient<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], sink: &mut impl Sink<StringRecords>) -> Result<(), PeerError> {
        let value = self.tree.get_ref(key, &self.guard);
        sink.value(value.as_deref().map(|value| &**value));
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.tree.insert_with_guard(key, value.into(), &self.guard);
        Ok(())
    }

    /// Executes a scan as a get, and a scan after the key: masstree's inclusive scans sometimes
    /// miss their first key (0.9.5, where many keys share their first eight bytes).
    #[inline]
    fn scan(
        &mut self,
        from: &[u8],
        limit: usize,
        sink: &mut impl Sink<StringRecords>,
    ) -> Result<(), PeerError> {
        if limit == 0 {
            return Ok(());
        }
        let mut count = 0;
        if let Some(value) = self.tree.get_ref(from, &self.guard) {
            sink.record(from, &value);
            count += 1;
        }
        if count == limit {
            return Ok(());
        }
        let (first, last) = (RangeBound::Excluded(from), RangeBound::Unbounded);
        self.tree.scan_intra_leaf_batch_ref(
            first,
            last,
            |key, value| {
                sink.record(key, value);
                count += 1;
                count < limit
            },
            &self.guard,
        );
        Ok(())
    }

    #[inline]
    fn pause(&mut self) -> Result<(), PeerError> {
        self.guard.refresh();
        Ok(())
    }
}
