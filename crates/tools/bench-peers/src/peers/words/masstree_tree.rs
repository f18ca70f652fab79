//! Masstree crate: a trie of B+-trees over byte strings; 8-byte keys form one layer of it.

use masstree::{MassTree, RangeBound};
use seize::{Guard, LocalGuard};

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Sink, WordRecords};

/// Tree, loaded in ascending order. Keys are big-endian, so that bytes order like numbers; values
/// are stored inline.
pub struct MasstreePeer(MassTree<u64>);

impl MasstreePeer {
    /// Loads the keys with their first values.
    pub fn load(records: &WordRecords) -> Self {
        let tree = MassTree::new();
        {
            let mut guard = tree.guard();
            for (key, value) in records.first() {
                tree.insert_with_guard(&key.to_be_bytes(), value, &guard);
                guard.refresh();
            }
        }
        Self(tree)
    }
}

/// Client that stays guarded between pauses.
pub struct MasstreeClient<'a> {
    tree: &'a MassTree<u64>,
    guard: LocalGuard<'a>,
}

impl Peer<WordRecords> for MasstreePeer {
    type Client<'a> = MasstreeClient<'a>;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(MasstreeClient {
            tree: &self.0,
            guard: self.0.guard(),
        })
    }
}

impl Client<WordRecords> for MasstreeClient<'_> {
    #[inline]
    fn get(&mut self, key: u64, sink: &mut impl Sink<WordRecords>) -> Result<(), PeerError> {
        sink.value(self.tree.get_with_guard(&key.to_be_bytes(), &self.guard));
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        let key = key.to_be_bytes();
        self.tree.insert_with_guard(&key, value, &self.guard);
        Ok(())
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        if limit == 0 {
            return Ok(());
        }
        let from = from.to_be_bytes();
        let mut count = 0;
        let visit = |key: &[u8], value: u64| {
            let mut word = [0; 8];
            word.copy_from_slice(key);
            sink.record(u64::from_be_bytes(word), value);
            count += 1;
            count < limit
        };
        let (first, last) = (RangeBound::Included(&from), RangeBound::Unbounded);
        self.tree
            .scan_intra_leaf_batch(first, last, visit, &self.guard);
        Ok(())
    }

    #[inline]
    fn pause(&mut self) -> Result<(), PeerError> {
        self.guard.refresh();
        Ok(())
    }
}
