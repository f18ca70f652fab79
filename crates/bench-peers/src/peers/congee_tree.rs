//! congee: an adaptive radix tree with optimistic lock coupling, for keys of exactly 8 bytes.

use congee::U64Congee;
use crossbeam_epoch::Guard;

use super::first_records;
use crate::peer::{Client, Peer, PeerError, Work};

/// The tree. Loaded in ascending order.
pub struct CongeePeer(U64Congee<usize>);

impl CongeePeer {
    /// Loads the keys with their first values.
    ///
    /// # Errors
    /// There is no memory left.
    pub fn load(keys: &[u64]) -> Result<Self, PeerError> {
        let tree = U64Congee::new();
        let mut guard = crossbeam_epoch::pin();
        for (key, value) in first_records(keys) {
            let inserted = tree.insert(key, value as usize, &guard);
            inserted.map_err(|_| PeerError::Congee)?;
            guard.repin();
        }
        Ok(Self(tree))
    }
}

/// A handle that stays pinned between pauses.
pub struct CongeeClient<'a> {
    tree: &'a U64Congee<usize>,
    guard: Guard,
    found: Vec<([u8; 8], usize)>,
}

impl Peer for CongeePeer {
    type Client<'a> = CongeeClient<'a>;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(CongeeClient {
            tree: &self.0,
            guard: crossbeam_epoch::pin(),
            found: Vec::new(),
        })
    }
}

impl CongeeClient<'_> {
    /// A scan of congee's ends before its upper bound, so the largest key of all needs a get.
    fn add_largest(&self, limit: usize, records: &mut Vec<(u64, u64)>) {
        let has_it = records.last().is_some_and(|(key, _)| *key == u64::MAX);
        if records.len() >= limit || has_it {
            return;
        }
        if let Some(value) = self.tree.get(u64::MAX, &self.guard) {
            records.push((u64::MAX, value as u64));
        }
    }
}

impl Client for CongeeClient<'_> {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, PeerError> {
        Ok(self.tree.get(key, &self.guard).map(|value| value as u64))
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        let put = self.tree.insert(key, value as usize, &self.guard);
        put.map(drop).map_err(|_| PeerError::Congee)
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), PeerError> {
        self.found.resize(limit, ([0; 8], 0));
        let count = self
            .tree
            .range(from, u64::MAX, &mut self.found, &self.guard);
        records.clear();
        let found = self.found[..count].iter();
        records.extend(found.map(|(key, value)| (u64::from_be_bytes(*key), *value as u64)));
        self.add_largest(limit, records);
        Ok(())
    }

    #[inline]
    fn pause(&mut self) {
        self.guard.repin();
    }
}
