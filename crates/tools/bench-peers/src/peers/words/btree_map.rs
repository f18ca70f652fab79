//! `RwLock<BTreeMap>`: the map that a program has without any dependency.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Sink, WordRecords};

/// Map, built from the sorted records, so that its nodes are full.
#[derive(Debug)]
pub struct BTreeMapPeer(RwLock<BTreeMap<u64, u64>>);

impl BTreeMapPeer {
    /// Loads the keys with their first values.
    pub fn load(records: &WordRecords) -> Self {
        Self(RwLock::new(records.first().collect()))
    }
}

impl Peer<WordRecords> for BTreeMapPeer {
    type Client<'a> = &'a BTreeMapPeer;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        Ok(self)
    }
}

impl Client<WordRecords> for &BTreeMapPeer {
    #[inline]
    fn get(&mut self, key: u64, sink: &mut impl Sink<WordRecords>) -> Result<(), PeerError> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sink.value(map.get(&key).copied());
        Ok(())
    }

    /// Reads all values with the lock taken once.
    #[inline]
    fn multi_get(
        &mut self,
        keys: &[u64],
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            sink.value(map.get(key).copied());
        }
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
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = map.range(from..).take(limit);
        found.for_each(|(key, value)| sink.record(*key, *value));
        Ok(())
    }
}
