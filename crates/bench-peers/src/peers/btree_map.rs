//! `RwLock<BTreeMap>`: what a program has without any dependency.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use super::first_records;
use crate::peer::{Client, Peer, PeerError, Work};

/// The map. Built from the sorted records, so its nodes are full.
#[derive(Debug)]
pub struct BTreeMapPeer(RwLock<BTreeMap<u64, u64>>);

impl BTreeMapPeer {
    /// Loads the keys with their first values.
    pub fn load(keys: &[u64]) -> Self {
        Self(RwLock::new(first_records(keys).collect()))
    }
}

impl Peer for BTreeMapPeer {
    type Client<'a> = &'a BTreeMapPeer;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(self)
    }
}

impl Client for &BTreeMapPeer {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, PeerError> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Ok(map.get(&key).copied())
    }

    /// The lock is taken once.
    #[inline]
    fn multi_get(&mut self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<(), PeerError> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.clear();
        values.extend(keys.iter().map(|key| map.get(key).copied()));
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(key, value);
        Ok(())
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), PeerError> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        records.clear();
        let found = map.range(from..).take(limit);
        records.extend(found.map(|(key, value)| (*key, *value)));
        Ok(())
    }
}
